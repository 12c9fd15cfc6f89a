"""Route messages with spark-submit:

    spark-submit --master 'local[2]' examples/spark_submit.py out

On a cluster, use another --master and a folder that all machines share. `session()` sends the package to the executors, which
need Python with pyspark, pandas and pyarrow only.
"""

from __future__ import annotations

import sys

from holtmq import Binding, Exchange, Queue, Topology
from holtmq.spark import route, session

TOPOLOGY = Topology(
    (Exchange("orders", "topic"),),
    (Queue("food"), Queue("audit")),
    (Binding("orders", "food", "orders.food.#"), Binding("orders", "audit", "orders.#")),
)


def main(target: str) -> None:
    spark = session(app_name="route orders")  # uses the session of spark-submit
    messages = spark.range(1000).selectExpr(
        "'orders' as exchange",
        "concat('orders.', if(id % 2 = 0, 'food.', 'toys.'), id) as routing_key",
        "cast(id as string) as body",
    )
    route(messages, TOPOLOGY).write.partitionBy("queue").mode("overwrite").parquet(target)
    print(f"{messages.count():,} messages, {spark.read.parquet(target).count():,} deliveries in {target}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
