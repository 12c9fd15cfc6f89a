import { html } from "../html.js";
import { link, useResource } from "../state.js";
import { Facts, Failure, Figure, Table } from "../parts.js";
import { asLevels, asRates, Chart } from "../chart.js";
import { bytes, count, duration, rate, rateOf } from "../format.js";

const URL = "/api/overview?msg_rates_age=600&msg_rates_incr=5&lengths_age=600&lengths_incr=5";

export function Overview({ user }) {
  const { data, error } = useResource(URL);
  const sees = user.tags.some((tag) => ["administrator", "monitoring"].includes(tag));
  const nodes = useResource(sees ? "/api/nodes" : null);
  if (!data) return html`<h1>Overview</h1><${Failure} error=${error} />`;
  const { message_stats: messages, queue_totals: lengths, object_totals: objects, churn_rates: churn } = data;
  const chart = (names) => Object.fromEntries(Object.entries(names).map(([label, name]) => [label, asRates(messages[`${name}_details`].samples)]));
  const node = nodes.data?.[0];
  return html`<h1>Overview</h1><p class="quiet">${data.product_name} ${data.product_version} · Python ${data.python_version} · ${data.cluster_name}</p>
    <${Failure} error=${error} />
    <div class="figures by-5">
      <${Figure} label="ready" value=${count(lengths.messages_ready)} /><${Figure} label="unacknowledged" value=${count(lengths.messages_unacknowledged)} />
      <${Figure} label="published" value=${rate(rateOf(messages, "publish"))} /><${Figure} label="delivered" value=${rate(rateOf(messages, "deliver_get"))} /><${Figure} label="acknowledged" value=${rate(rateOf(messages, "ack"))} />
      ${["connections", "channels", "consumers", "exchanges", "queues"].map((name) => html`<${Figure} label=${name} value=${count(objects[name])} href=${link(name)} />`)}
    </div>
    <div class="grid">
      <div class="panel"><${Chart} title="Message rates" isRate lines=${chart({ published: "publish", delivered: "deliver_get", acknowledged: "ack", redelivered: "redeliver" })} /></div>
      <div class="panel"><${Chart} title="Messages in queues" lines=${{ ready: asLevels(lengths.messages_ready_details.samples), unacknowledged: asLevels(lengths.messages_unacknowledged_details.samples) }} /></div>
    </div>
    <div class="grid">
      <section class="panel"><h2>Since startup</h2><${Facts} of=${{
        published: count(messages.publish), confirmed: count(messages.confirm), delivered: count(messages.deliver_get), acknowledged: count(messages.ack), redelivered: count(messages.redeliver),
        "unroutable, returned": count(messages.return_unroutable), "unroutable, dropped": count(messages.drop_unroutable),
        connections: `${count(churn.connection_created)} opened, ${count(churn.connection_closed)} closed`, queues: `${count(churn.queue_created)} created, ${count(churn.queue_deleted)} deleted`,
      }} /></section>
      ${node && html`<section class="panel"><h2>Node</h2><${Facts} of=${{
        name: node.name, "data file": node.db_dir, uptime: duration(node.uptime), memory: bytes(node.mem_used), "memory in use by clients": `${bytes(node.mem_counted)} of ${bytes(node.mem_limit)}`,
        "free disk space": bytes(node.disk_free), "open files": `${count(node.fd_used)} of ${count(node.fd_total)}`, connections: `${count(node.sockets_used)} of ${count(node.sockets_total)}`,
      }} /></section>`}
    </div>
    <h2>Listeners</h2>
    <${Table} caption="Listeners" rows=${data.listeners} columns=${[{ label: "Protocol", show: (each) => each.protocol }, { label: "Address", show: (each) => each.ip_address }, { label: "Port", number: true, show: (each) => each.port }]} />`;
}
