// Reads a stream twice, the second time from an offset, and prints the offsets and bodies that it has seen.
import amqp from "amqplib";

const connection = await amqp.connect(process.argv[2]);
const publisher = await connection.createConfirmChannel();
await publisher.assertQueue("events", { durable: true, arguments: { "x-queue-type": "stream" } });
for (let number = 0; number < 5; number += 1) {
  publisher.sendToQueue("events", Buffer.from(String(number)), { persistent: true });
}
await publisher.waitForConfirms();

async function read(offset, count) {
  const channel = await connection.createChannel();
  await channel.prefetch(2);
  const seen = [];
  await new Promise((resolve) => {
    const receive = (message) => {
      channel.ack(message);
      seen.push([message.properties.headers["x-stream-offset"], message.content.toString()]);
      if (seen.length === count) resolve();
    };
    channel.consume("events", receive, { arguments: { "x-stream-offset": offset } });
  });
  await channel.close();
  return seen;
}

console.log(JSON.stringify([await read("first", 5), await read(3, 2)]));
await connection.close();
