import { html, useState } from "../html.js";
import { at, call, exchangeName } from "../api.js";
import { go, link, useResource } from "../state.js";
import { ArgumentList, Arguments, Check, Choice, ConfirmButton, Facts, Failure, Field, Form, Listing, DialogButton, Tag, Text, readArguments } from "../parts.js";
import { asRates, Chart } from "../chart.js";
import { count, rate, rateOf } from "../format.js";
import { VhostChoice } from "../vhost-choice.js";
import { BindForm, BindingTable } from "./bindings.js";
import { Explained } from "./explorer.js";

export const TYPES = ["direct", "topic", "fanout", "headers", "x-consistent-hash"];
export const shownName = (name) => name || "(default exchange)";

export function Exchanges() {
  const [version, setVersion] = useState(0);
  const columns = () => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("exchanges", each.vhost, exchangeName(each.name))}>${shownName(each.name)}</a>` },
    { label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
    { label: "Type", sort: "type", show: (each) => html`<${Tag} kind=${each.type}>${each.type}<//>` },
    { label: "Features", show: (each) => html`${!each.durable && html`<${Tag}>transient<//> `}${each.auto_delete && html`<${Tag}>auto-delete<//> `}${each.internal && html`<${Tag}>internal<//> `}${each.policy && html`<${Tag}>policy ${each.policy}<//> `}<${ArgumentList} value=${each.arguments} />` },
    { label: "Published", sort: "message_stats.publish_in_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "publish_in")) },
    { label: "Routed", sort: "message_stats.publish_out_details.rate", number: true, show: (each) => rate(rateOf(each.message_stats, "publish_out")) },
  ];
  const add = html`<${DialogButton} label="Add exchange" kind="primary">${(close) => html`<${DeclareExchange} done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  return html`<h1>Exchanges</h1><${Listing} caption="exchanges" url="/api/exchanges" columns=${columns} version=${version} actions=${add} />`;
}

function DeclareExchange({ done }) {
  const [rows, setRows] = useState([]);
  const submit = async ({ elements }) => {
    const body = { type: elements.type.value, durable: elements.durable.checked, auto_delete: elements.autodelete.checked, internal: elements.internal.checked, arguments: readArguments(rows) };
    await call("PUT", at("exchanges", elements.vhost.value, elements.exchange.value), body);
    return `Exchange ${elements.exchange.value} created.`;
  };
  return html`<${Form} label="Add" submit=${submit} done=${done}>
    <div class="fields"><${VhostChoice} /><${Text} label="Name" name="exchange" required /><${Choice} label="Type" name="type" options=${TYPES} /></div>
    <div class="row"><${Check} label="Durable" name="durable" defaultChecked /><${Check} label="Auto-delete: delete it when its last binding is removed" name="autodelete" /><${Check} label="Internal: clients cannot publish to it" name="internal" /></div>
    <${Arguments} value=${rows} onChange=${setRows} suggestions=${["alternate-exchange", "hash-header"]} />
  <//>`;
}

export function ExchangePage({ of: [vhost, name] }) {
  const realName = name === "amq.default" ? "" : name;
  const { data, error } = useResource(`${at("exchanges", vhost, name)}?msg_rates_age=300&msg_rates_incr=5`);
  const from = useResource(at("exchanges", vhost, name, "bindings", "source"));
  const to = useResource(at("exchanges", vhost, name, "bindings", "destination"));
  const reload = () => { from.reload(); to.reload(); };
  const stats = data?.message_stats ?? {};
  const isOurs = realName && !realName.startsWith("amq.");
  const remove = async () => {
    await call("DELETE", at("exchanges", vhost, name));
    go("exchanges");
    return `Exchange ${name} deleted.`;
  };
  return html`<p class="crumbs"><a href="#/exchanges">Exchanges</a> in virtual host ${vhost}</p><div class="row spread"><h1>${shownName(realName)}</h1><div class="row">
      <a class="button" href=${`#/explorer?vhost=${encodeURIComponent(vhost)}&exchange=${encodeURIComponent(realName)}`}>Explore routes</a>
      ${isOurs && html`<${ConfirmButton} label="Delete" question=${`Delete the exchange ${name} and its bindings?`} act=${remove} />`}</div></div>
    <${Failure} error=${error} />
    ${data && html`<div class="grid"><section class="panel"><${Facts} of=${{
      type: html`<${Tag} kind=${data.type}>${data.type}<//>`, durable: data.durable ? "yes" : "no", "auto-delete": data.auto_delete ? "yes" : "no", internal: data.internal ? "yes" : "no", policy: data.policy,
      arguments: Object.keys(data.arguments).length ? html`<${ArgumentList} value=${data.arguments} />` : null, published: count(stats.publish_in ?? 0), routed: count(stats.publish_out ?? 0),
    }} />${data.outgoing.length > 0 && html`<h2 style=${{ marginTop: "1rem" }}>Currently routes to</h2><ul>${data.outgoing.map((each) => html`<li><a href=${link("queues", vhost, each.queue.name)}>${each.queue.name}</a> ${rate(each.stats.publish_details.rate)}</li>`)}</ul>`}</section>
      <div class="panel"><${Chart} title="Message rates" isRate lines=${{ published: asRates(stats.publish_in_details?.samples), routed: asRates(stats.publish_out_details?.samples) }} /></div></div>
    <section class="panel"><div class="row spread"><h2>Bindings from this exchange</h2>${realName && html`<${DialogButton} label="Bind" title=${`Bind ${name}`} kind="primary">${(close) => html`<${BindForm} vhost=${vhost} source=${name} done=${() => { close(); reload(); }} />`}<//>`}</div>
      <${BindingTable} caption="Bindings from this exchange" omit="From" rows=${from.data ?? []} reload=${reload} /></section>
    ${to.data?.length > 0 && html`<section class="panel"><h2>Bindings to this exchange</h2><${BindingTable} caption="Bindings to this exchange" omit="To" rows=${to.data} reload=${reload} /></section>`}
    ${!data.internal && html`<section class="panel"><h2>Publish a message</h2><${Publish} vhost=${vhost} exchange=${name} /></section>`}`}`;
}

const PROPERTIES = ["content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id"];

export function Publish({ vhost, exchange, routingKey }) {
  const [headers, setHeaders] = useState([]);
  const [answer, setAnswer] = useState(null);
  const submit = async ({ elements }) => {
    const properties = { delivery_mode: elements.persistent.checked ? 2 : 1 };
    for (const name of PROPERTIES) if (elements[name].value) properties[name] = elements[name].value;
    if (elements.priority.value) properties.priority = Number(elements.priority.value);
    if (elements.expiration.value) properties.expiration = elements.expiration.value;
    const table = readArguments(headers);
    if (Object.keys(table).length) properties.headers = table;
    const key = routingKey ?? elements.key.value;
    const body = { properties, routing_key: key, payload: elements.payload.value, payload_encoding: elements.encoding.value };
    const { routed } = await call("POST", at("exchanges", vhost, exchange, "publish"), body);
    const explanation = routed ? null : await call("POST", at("exchanges", vhost, exchange, "explain"), { routing_key: key, headers: table });
    setAnswer({ routed, explanation });
    return routed ? "Message published and routed." : null;
  };
  return html`<${Form} label="Publish" submit=${submit}>
    ${routingKey === undefined && html`<${Text} label="Routing key" name="key" />`}
    <${Field} label="Payload"><textarea name="payload"></textarea><//>
    <div class="row"><${Choice} label="Payload encoding" name="encoding" options=${[{ value: "string", label: "text" }, "base64"]} /><${Check} label="Persistent" name="persistent" defaultChecked /></div>
    <details><summary>Properties and headers</summary><div class="form" style=${{ marginTop: ".6rem" }}>
      <div class="fields"><${Text} label="priority" name="priority" type="number" min="0" max="255" /><${Text} label="expiration (ms)" name="expiration" inputmode="numeric" />${PROPERTIES.map((name) => html`<${Text} label=${name} name=${name} />`)}</div>
      <${Arguments} legend="Headers" noun="header" value=${headers} onChange=${setHeaders} /></div></details>
    ${answer && !answer.routed && html`<div class="note warn" role="status">The message was not routed to any queue. The explanation shows why, and the bindings that almost matched:</div><${Explained} explanation=${answer.explanation} />`}
  <//>`;
}
