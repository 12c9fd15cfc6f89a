import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { go, link, useResource } from "../state.js";
import { ArgumentList, Arguments, Check, Choice, ConfirmButton, Facts, Failure, Figure, Form, Listing, DialogButton, Table, Tag, Text, readArguments } from "../parts.js";
import { asLevels, asRates, Chart } from "../chart.js";
import { bytes, count, moment, rate, rateOf } from "../format.js";
import { VhostChoice } from "../vhost-choice.js";
import { BindForm, BindingTable } from "./bindings.js";
import { consumerColumns, placeColumns } from "./channels.js";
import { Publish, shownName } from "./exchanges.js";

const QUEUE_ARGUMENTS = [
  "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-priority",
  "x-single-active-consumer", "x-delivery-limit", "x-queue-type", "x-max-age", "x-stream-max-segment-size-bytes",
];
const LISTED = "name,vhost,durable,auto_delete,exclusive,arguments,policy,messages,messages_ready,messages_unacknowledged,consumers,message_stats";

export function Queues() {
  const [version, setVersion] = useState(0);
  const columns = () => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("queues", each.vhost, each.name)}>${each.name}</a>` },
    { label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
    { label: "Features", show: (each) => html`${!each.durable && html`<${Tag}>transient<//> `}${each.auto_delete && html`<${Tag}>auto-delete<//> `}${each.exclusive && html`<${Tag}>exclusive<//> `}${each.policy && html`<${Tag}>policy ${each.policy}<//> `}<${ArgumentList} value=${each.arguments} />` },
    { label: "Ready", sort: "messages_ready", number: true, show: (each) => count(each.messages_ready) },
    { label: "Unacknowledged", sort: "messages_unacknowledged", number: true, show: (each) => count(each.messages_unacknowledged) },
    { label: "Consumers", sort: "consumers", number: true, show: (each) => count(each.consumers) },
    { label: "Incoming", sort: "message_stats.publish_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "publish")) },
    { label: "Delivered", sort: "message_stats.deliver_get_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "deliver_get")) },
  ];
  const add = html`<${DialogButton} label="Add queue" kind="primary">${(close) => html`<${DeclareQueue} done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  return html`<h1>Queues</h1><${Listing} caption="queues" url="/api/queues" parameters=${{ columns: LISTED }} columns=${columns} version=${version} actions=${add} empty=${html`No queues. Add one here, declare it over AMQP, or run <code>holtmq declare queue NAME</code>.`} />`;
}

function DeclareQueue({ done }) {
  const [rows, setRows] = useState([]);
  const submit = async ({ elements }) => {
    const body = { durable: elements.durable.checked, auto_delete: elements.autodelete.checked, arguments: readArguments(rows) };
    await call("PUT", at("queues", elements.vhost.value, elements.queue.value), body);
    return `Queue ${elements.queue.value} created.`;
  };
  return html`<${Form} label="Add" submit=${submit} done=${done}>
    <div class="fields"><${VhostChoice} /><${Text} label="Name" name="queue" required /></div>
    <div class="row"><${Check} label="Durable" name="durable" defaultChecked /><${Check} label="Auto-delete: delete it when its last consumer is gone" name="autodelete" /></div>
    <${Arguments} value=${rows} onChange=${setRows} suggestions=${QUEUE_ARGUMENTS} />
  <//>`;
}

export function QueuePage({ of: [vhost, name] }) {
  const url = at("queues", vhost, name);
  const { data, error, reload } = useResource(`${url}?lengths_age=300&lengths_incr=5`);
  const bindings = useResource(`${url}/bindings`);
  const remove = async () => {
    await call("DELETE", url);
    go("queues");
    return `Queue ${name} deleted.`;
  };
  const purge = async () => {
    await call("DELETE", `${url}/contents`);
    reload();
    return `Queue ${name} purged.`;
  };
  const stats = data?.message_stats ?? {};
  const policy = data && Object.keys(data.effective_policy_definition).length > 0;
  const isStream = data?.type === "stream";
  return html`<p class="crumbs"><a href="#/queues">Queues</a> in virtual host ${vhost}</p>
    <div class="row spread"><h1>${name}</h1><div class="row">
      <a class="button" href=${`#/topology?vhost=${encodeURIComponent(vhost)}&focus=${encodeURIComponent(name)}`}>Show in topology</a>
      ${data && !isStream && html`<${DialogButton} label="Move messages">${(close) => html`<${MoveForm} vhost=${vhost} name=${name} ready=${data?.messages_ready} done=${() => { close(); reload(); }} />`}<//>
      <${ConfirmButton} label="Purge" question=${`Delete all ${count(data?.messages_ready)} ready messages of ${name}? Unacknowledged messages stay.`} act=${purge} />`}
      <${ConfirmButton} label="Delete" question=${`Delete the queue ${name} with its ${count(data?.messages)} messages and its bindings?`} act=${remove} /></div></div>
    <${Failure} error=${error} />
    ${data && html`<div class="figures by-6">${isStream
      ? html`<${Figure} label="messages" value=${count(data.messages)} /><${Figure} label="last offset" value=${data.last_offset === null ? "none" : count(data.last_offset)} />`
      : html`<${Figure} label="ready" value=${count(data.messages_ready)} /><${Figure} label="unacknowledged" value=${count(data.messages_unacknowledged)} />`}<${Figure} label="incoming" value=${rate(rateOf(stats, "publish"))} /><${Figure} label="delivered" value=${rate(rateOf(stats, "deliver_get"))} /><${Figure} label="consumers" value=${count(data.consumers)} /><${Figure} label=${isStream ? "in the file" : "message bodies"} value=${bytes(data.message_bytes)} /></div>
    <div class="grid">
      <div class="panel"><${Chart} title="Messages in this queue" lines=${{ ready: asLevels(data.messages_ready_details.samples), unacknowledged: asLevels(data.messages_unacknowledged_details.samples) }} /></div>
      <div class="panel"><${Chart} title="Message rates" isRate lines=${{ incoming: asRates(stats.publish_details?.samples), delivered: asRates(stats.deliver_get_details?.samples), acknowledged: asRates(stats.ack_details?.samples) }} /></div>
    </div>
    <section class="panel"><${Facts} of=${{
      durable: data.durable ? "yes" : "no", "auto-delete": data.auto_delete ? "yes" : null, exclusive: data.exclusive ? "yes" : null, arguments: Object.keys(data.arguments).length ? html`<${ArgumentList} value=${data.arguments} />` : null,
      policy: data.policy, "policy definition": policy ? html`<${ArgumentList} value=${data.effective_policy_definition} />` : null, "messages in memory": isStream ? null : count(data.messages_ram),
      offsets: isStream && data.last_offset !== null ? `${count(data.first_offset)} to ${count(data.last_offset)}` : null, stored: isStream && data.last_offset !== null ? `${moment(data.first_timestamp)} to ${moment(data.last_timestamp)}` : null, chunks: isStream ? count(data.segments) : null,
      "incoming from": data.incoming.length ? data.incoming.map((each) => `${shownName(each.exchange.name)} ${rate(each.stats.publish_details.rate)}`).join(", ") : null,
    }} /></section>
    <section class="panel"><div class="row spread"><h2>Bindings to this queue</h2><${DialogButton} label="Bind" title=${`Bind ${name}`} kind="primary">${(close) => html`<${BindForm} vhost=${vhost} queue=${name} done=${() => { close(); bindings.reload(); }} />`}<//></div>
      <${BindingTable} caption="Bindings to this queue" omit="To" rows=${bindings.data ?? []} reload=${bindings.reload} /></section>
    <section class="panel"><h2>Consumers</h2><${Table} caption="Consumers of this queue" rows=${data.consumer_details} columns=${[...consumerColumns.slice(1), ...(isStream ? placeColumns : [])]} empty="No consumers." /></section>
    <section class="panel"><h2>${isStream ? "Read messages" : "Get messages"}</h2><${GetMessages} url=${url} isStream=${isStream} after=${reload} /></section>
    <section class="panel"><h2>Publish to this queue</h2><${Publish} vhost=${vhost} exchange="amq.default" routingKey=${name} /></section>`}`;
}

function MoveForm({ vhost, name, ready, done }) {
  const queues = useResource(`${at("queues", vhost)}?columns=name`, 0);
  const submit = async ({ elements }) => {
    const body = { destination: elements.destination.value };
    if (elements.count.value) body.count = Number(elements.count.value);
    const { moved } = await call("POST", at("queues", vhost, name, "move"), body);
    return `${count(moved)} ${moved === 1 ? "message" : "messages"} moved to ${body.destination}.`;
  };
  return html`<${Form} label="Move" submit=${submit} done=${done}>
    <p>Ready messages move to the end of another queue, oldest first. They keep their exchange, routing key and properties.</p>
    <div class="fields"><${Text} label="Destination queue" name="destination" list="move-queues" required /><${Text} label="Number of messages" name="count" type="number" min="1" placeholder=${`all ${count(ready)}`} /></div>
    <datalist id="move-queues">${(queues.data ?? []).filter((each) => each.name !== name).map((each) => html`<option value=${each.name}></option>`)}</datalist>
  <//>`;
}

const MODES = [
  { value: "ack_requeue_true", label: "Requeue the messages" },
  { value: "ack_requeue_false", label: "Acknowledge the messages (removes them)" },
  { value: "reject_requeue_false", label: "Reject the messages (dead-letters or removes them)" },
];

function GetMessages({ url, isStream, after }) {
  const [messages, setMessages] = useState(null);
  const submit = async ({ elements }) => {
    const body = { count: Number(elements.count.value), ackmode: elements.mode?.value ?? "ack_requeue_true", encoding: "auto", truncate: 50000 };
    if (isStream) body.offset = /^\d+$/.test(elements.offset.value) ? Number(elements.offset.value) : elements.offset.value;
    setMessages(await call("POST", `${url}/get`, body));
    after();
  };
  const place = html`<${Text} label="From: first, last, an offset, a time, or an interval such as 1h" name="offset" defaultValue="first" required />`;
  return html`<${Form} label=${isStream ? "Read messages" : "Get messages"} submit=${submit}>
    <div class="fields"><${Text} label="Number of messages" name="count" type="number" min="1" max="1000" defaultValue="1" />${isStream ? place : html`<${Choice} label="Then" name="mode" options=${MODES} />`}</div>
    <div role="status">${messages && !messages.length && html`<p class="quiet">${isStream ? "No messages from there on." : "The queue is empty."}</p>`}
    ${messages?.map((each, place) => html`<article class="panel" aria-label=${`Message ${place + 1}`}><${Facts} of=${{
      offset: isStream ? count(each.offset) : null, stored: isStream ? moment(each.timestamp) : null, exchange: shownName(each.exchange), "routing key": html`<code>${each.routing_key}</code>`, redelivered: each.redelivered ? "yes" : null, properties: Object.keys(each.properties).length ? html`<${ArgumentList} value=${each.properties} />` : null, size: bytes(each.payload_bytes),
    }} /><pre class="payload" tabindex="0">${each.payload}</pre>${each.payload_encoding === "base64" && html`<small class="quiet">The payload is binary; it is shown in base64.</small>`}</article>`)}</div>
  <//>`;
}
