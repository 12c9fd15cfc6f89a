# Publishes to a stream with confirms and reads it from several places. Prints the offsets and bodies that it has seen as JSON.
require "bunny"
require "json"

COUNT = 5

connection = Bunny.new(ARGV.fetch(0), automatically_recover: false)
connection.start
publisher = connection.create_channel
publisher.confirm_select
publisher.queue("events", durable: true, arguments: { "x-queue-type" => "stream" })
COUNT.times { |number| publisher.default_exchange.publish(number.to_s, routing_key: "events", persistent: true) }
abort "the broker refused a message" unless publisher.wait_for_confirms

def read(connection, start, count)
  channel = connection.create_channel
  channel.prefetch(2)
  received = Queue.new
  queue = channel.queue("events", durable: true, arguments: { "x-queue-type" => "stream" })
  queue.subscribe(manual_ack: true, arguments: { "x-stream-offset" => start }) do |delivery, properties, body|
    channel.ack(delivery.delivery_tag)
    received << [properties.headers["x-stream-offset"], body]
  end
  seen = Array.new(count) { received.pop }
  channel.close
  seen
end

an_hour_ago = Time.now - 3600
puts JSON.generate([read(connection, "first", COUNT), read(connection, 3, COUNT - 3), read(connection, an_hour_ago, COUNT)])
connection.close
