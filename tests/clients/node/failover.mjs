// Publishes a confirmed message to the first of several brokers that takes it, and reads it from another one.
import amqp from "amqplib";

const urls = process.argv.slice(2);

async function connect() {
  for (;;) {
    for (const url of urls) {
      try {
        return await amqp.connect(url);
      } catch {
        await new Promise((done) => setTimeout(done, 50));
      }
    }
  }
}

const first = await connect();
const lost = new Promise((done) => first.on("close", done));
first.on("error", () => {});
const publisher = await first.createConfirmChannel();
await publisher.assertQueue("kept", { durable: true });
publisher.sendToQueue("kept", Buffer.from("confirmed"), { persistent: true });
await publisher.waitForConfirms();
console.log("confirmed");
await lost;
const second = await connect();
const channel = await second.createChannel();
const message = await channel.get("kept", { noAck: true });
console.log(message.content.toString());
await second.close();
