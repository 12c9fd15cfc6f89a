import { html } from "../html.js";
import { at } from "../api.js";
import { link, useResource } from "../state.js";
import { Facts, Failure, Listing, Table, Tag } from "../parts.js";
import { count, rate, rateOf } from "../format.js";

const modes = (each) => [each.confirm && "confirms", each.transactional && "transactions"].filter(Boolean).join(", ");

export const channelColumns = [
  { label: "Channel", sort: "name", show: (each) => html`<a href=${link("channels", each.name)}>${each.name}</a>` },
  { label: "User", sort: "user", show: (each) => each.user },
  { label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
  { label: "Mode", show: modes },
  { label: "Consumers", sort: "consumer_count", number: true, show: (each) => count(each.consumer_count) },
  { label: "Prefetch", sort: "prefetch_count", number: true, show: (each) => each.global_prefetch_count || each.prefetch_count || "unlimited" },
  { label: "Unacknowledged", sort: "messages_unacknowledged", number: true, show: (each) => count(each.messages_unacknowledged) },
  { label: "Unconfirmed", sort: "messages_unconfirmed", number: true, show: (each) => count(each.messages_unconfirmed) },
  { label: "Published", sort: "message_stats.publish_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "publish")) },
  { label: "Delivered", sort: "message_stats.deliver_get_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "deliver_get")) },
];

export function Channels() {
  return html`<h1>Channels</h1><${Listing} caption="channels" url="/api/channels" columns=${() => channelColumns} empty="No open channels." />`;
}

export function Channel({ of: [name] }) {
  const { data, error } = useResource(at("channels", name));
  const stats = data?.message_stats ?? {};
  return html`<p class="crumbs"><a href="#/channels">Channels</a></p><h1>${name}</h1><${Failure} error=${error} />
    ${data && html`<section class="panel"><${Facts} of=${{
      connection: html`<a href=${link("connections", data.connection_details.name)}>${data.connection_details.name}</a>`, user: data.user, "virtual host": data.vhost, mode: modes(data) || "neither confirms nor transactions",
      "prefetch per consumer": data.prefetch_count || "unlimited", "prefetch per channel": data.global_prefetch_count || "unlimited", unacknowledged: count(data.messages_unacknowledged), unconfirmed: count(data.messages_unconfirmed),
      published: `${count(stats.publish ?? 0)}, ${rate(rateOf(stats, "publish"))}`, delivered: `${count(stats.deliver_get ?? 0)}, ${rate(rateOf(stats, "deliver_get"))}`, acknowledged: count(stats.ack ?? 0), returned: count(stats.return_unroutable ?? 0),
    }} /></section><h2>Consumers</h2><${Table} caption="Consumers of this channel" rows=${data.consumer_details} columns=${consumerColumns} empty="No consumers." />`}`;
}

export const consumerColumns = [
  { label: "Queue", sort: "queue.name", show: (each) => html`<a href=${link("queues", each.queue.vhost, each.queue.name)}>${each.queue.name}</a>` },
  { label: "Tag", sort: "consumer_tag", show: (each) => html`<code class="wrap">${each.consumer_tag}</code>` },
  { label: "Channel", sort: "channel_details.name", show: (each) => (each.channel_details.name ? html`<a href=${link("channels", each.channel_details.name)}>${each.channel_details.name}</a>` : "") },
  { label: "Acknowledgement", sort: "ack_required", show: (each) => (each.ack_required ? "manual" : "automatic") },
  { label: "Prefetch", sort: "prefetch_count", number: true, show: (each) => each.prefetch_count || "unlimited" },
  { label: "Unacknowledged", sort: "messages_unacknowledged", number: true, show: (each) => count(each.messages_unacknowledged) },
  { label: "State", sort: "activity_status", show: (each) => html`<${Tag} kind=${each.active ? "on" : ""}>${each.exclusive ? "exclusive" : each.activity_status}<//>` },
];

/** The place of a consumer in a stream. */
export const placeColumns = [
  { label: "Next offset", sort: "offset", number: true, show: (each) => count(each.offset) },
  { label: "Lag", sort: "lag", number: true, show: (each) => count(each.lag) },
];

export function Consumers() {
  return html`<h1>Consumers</h1><${Listing} caption="consumers" url="/api/consumers" initialSort="queue.name" columns=${() => consumerColumns} empty="No consumers." />`;
}
