// A session of amqplib: declare, bind, publish with confirms, consume, nack, dead letter, errors. Prints what it saw as JSON.
import amqp from "amqplib";

const url = process.argv[2];
const seen = {};

const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
await channel.assertExchange("orders", "topic", { durable: true });
await channel.assertQueue("dead", { durable: true });
await channel.assertQueue("work", { durable: true, deadLetterExchange: "", deadLetterRoutingKey: "dead" });
await channel.bindQueue("work", "orders", "orders.#");

const returned = [];
channel.on("return", (message) => returned.push(message.content.toString()));
for (let n = 0; n < 5; n++) {
  channel.publish("orders", "orders.eu", Buffer.from(`${n}`), { persistent: true, headers: { n } });
}
channel.publish("orders", "nowhere", Buffer.from("lost"), { mandatory: true });
await channel.waitForConfirms();
seen.returned = returned;

seen.consumed = await new Promise((resolve) => {
  const bodies = [];
  channel.prefetch(2);
  channel.consume("work", (message) => {
    const body = message.content.toString();
    bodies.push([body, message.fields.redelivered, message.properties.headers.n]);
    if (body === "1" && !message.fields.redelivered) channel.nack(message, false, true);
    else if (body === "3") channel.nack(message, false, false);
    else channel.ack(message);
    if (bodies.length === 6) resolve(bodies);
  });
});
await channel.waitForConfirms();
const letter = await channel.get("dead", { noAck: true });
seen.dead = [letter.content.toString(), letter.properties.headers["x-death"][0].reason];

const other = await connection.createChannel();
other.on("error", () => {});
seen.error = await other.checkQueue("missing").catch((error) => error.code);
await channel.checkQueue("work");
await connection.close();
console.log(JSON.stringify(seen));
