// Publish and close at once, many times: the promise of close() settles although data is still under way.
import amqp from "amqplib";

const url = process.argv[2];
for (let round = 0; round < 20; round++) {
  const connection = await amqp.connect(url);
  connection.on("error", () => {});
  const channel = await connection.createChannel();
  await channel.assertQueue("closed", { durable: true });
  for (let n = 0; n < 10; n++) channel.sendToQueue("closed", Buffer.alloc(20000));
  await connection.close();
}
console.log("closed");
