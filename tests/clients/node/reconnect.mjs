// Loses its broker, comes back, and finds its message. Prints "lost" when the broker is gone, then the message.
import amqp from "amqplib";

const url = process.argv[2];
const connection = await amqp.connect(url);
const channel = await connection.createConfirmChannel();
await channel.assertQueue("kept", { durable: true });
channel.sendToQueue("kept", Buffer.from("kept"), { persistent: true });
await channel.waitForConfirms();
const closed = new Promise((resolve) => connection.on("close", resolve));
connection.on("error", () => {});
channel.on("error", () => {});
console.log("ready");
await closed;
console.log("lost");

let again;
while (!again) {
  again = await amqp.connect(url).catch(() => new Promise((resolve) => setTimeout(resolve, 100)));
}
const message = await (await again.createChannel()).get("kept", { noAck: true });
console.log(message.content.toString());
await again.close();
