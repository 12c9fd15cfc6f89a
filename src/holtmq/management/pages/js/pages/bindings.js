import { html, useState } from "../html.js";
import { at, call, exchangeName } from "../api.js";
import { link, useResource } from "../state.js";
import { ArgumentList, Arguments, Choice, Confirmed, Form, Listing, Opens, Table, Tag, Text, readArguments } from "../parts.js";
import { VhostChoice, useVhosts } from "../vhosts.js";
import { shownName } from "./exchanges.js";

const HEADER_ARGUMENTS = ["x-match", "x-priority", "x-message-ttl"];

export const bindingAt = (each) =>
  at("bindings", each.vhost, "e", exchangeName(each.source), each.destination_type === "queue" ? "q" : "e", each.destination) + "/" + each.properties_key.replaceAll("%", "%25");

const columns = (reload) => [
  { label: "From", sort: "source", show: (each) => html`<a href=${link("exchanges", each.vhost, exchangeName(each.source))}>${shownName(each.source)}</a>` },
  { label: "To", sort: "destination", show: (each) => html`<${Tag}>${each.destination_type}<//> <a href=${link(each.destination_type === "queue" ? "queues" : "exchanges", each.vhost, each.destination)}>${each.destination}</a>` },
  { label: "Routing key", sort: "routing_key", show: (each) => html`<code class="wrap">${each.routing_key}</code>` },
  { label: "Arguments", show: (each) => html`<${ArgumentList} value=${each.arguments} />` },
  {
    label: "",
    show: (each) => each.source && html`<${Confirmed} kind="link danger" label="Unbind" ariaLabel=${`Unbind ${each.source} from ${each.destination}, key ${each.routing_key}`}
      question=${`Remove the binding of ${each.destination} to ${each.source} by “${each.routing_key}”?`} act=${async () => { await call("DELETE", bindingAt(each)); reload(); return "Unbound."; }} />`,
  },
];

export const BindingTable = ({ caption, rows, reload }) => html`<${Table} caption=${caption} rows=${rows} columns=${columns(reload)} empty="No bindings." />`;

export function Bindings() {
  const [version, setVersion] = useState(0);
  const vhosts = useVhosts();
  const add = html`<${Opens} label="Bind" kind="primary">${(close) => html`<${BindForm} vhost=${vhosts[0]} isVhostFree done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  const listed = (reload) => [...columns(reload).slice(0, 2), { label: "Vhost", sort: "vhost", show: (each) => each.vhost }, ...columns(reload).slice(2)];
  return html`<h1>Bindings</h1><${Listing} caption="bindings" url="/api/bindings" initialSort="source" columns=${listed} version=${version} actions=${add} />`;
}

/** Binds an exchange to something, or something to an exchange. */
export function BindForm({ vhost: given, isVhostFree, source, queue, done }) {
  const [vhost, setVhost] = useState(given);
  const [kind, setKind] = useState("queue");
  const [rows, setRows] = useState([]);
  const exchanges = useResource(vhost === undefined ? null : `${at("exchanges", vhost)}?columns=name`, 0);
  const queues = useResource(vhost === undefined ? null : `${at("queues", vhost)}?columns=name`, 0);
  const names = (resource) => (resource.data ?? []).map((each) => each.name).filter(Boolean);
  const submit = async ({ elements }) => {
    const from = source ?? elements.source.value;
    const to = queue ?? elements.destination.value;
    await call("POST", at("bindings", vhost, "e", from, queue || kind === "queue" ? "q" : "e", to), { routing_key: elements.key.value, arguments: readArguments(rows) });
    return `${to} is bound to ${from}.`;
  };
  return html`<${Form} label="Bind" submit=${submit} done=${done}>
    <div class="fields">
      ${isVhostFree && html`<${VhostChoice} value=${vhost} onChange=${setVhost} />`}
      ${!source && html`<${Text} label="From exchange" name="source" list="known-exchanges" required />`}
      ${!queue && html`<${Choice} label="To" name="kind" value=${kind} onChange=${(event) => setKind(event.target.value)} options=${["queue", "exchange"]} />
        <${Text} label="Name" name="destination" list=${kind === "queue" ? "known-queues" : "known-exchanges"} required />`}
      <${Text} label="Routing key" name="key" hint="* is one word, # any number of words, in topic exchanges" />
    </div>
    <datalist id="known-exchanges">${names(exchanges).map((name) => html`<option value=${name}></option>`)}</datalist>
    <datalist id="known-queues">${names(queues).map((name) => html`<option value=${name}></option>`)}</datalist>
    <${Arguments} value=${rows} onChange=${setRows} suggestions=${HEADER_ARGUMENTS} />
  <//>`;
}
