import { html, useState } from "../html.js";
import { at, call, exchangeName } from "../api.js";
import { link, useResource } from "../state.js";
import { ArgumentList, Arguments, Choice, ConfirmButton, Form, Listing, DialogButton, Table, Tag, Text, readArguments } from "../parts.js";
import { minute } from "../format.js";
import { VhostChoice, useVhosts } from "../vhost-choice.js";
import { shownName } from "./exchanges.js";

const HEADER_ARGUMENTS = ["x-match", "x-priority", "x-message-ttl"];

export const bindingAt = (each) =>
  at("bindings", each.vhost, "e", exchangeName(each.source), each.destination_type === "queue" ? "q" : "e", each.destination) + "/" + each.properties_key.replaceAll("%", "%25");

const columns = (reload) => [
  { label: "From", sort: "source", show: (each) => html`<a href=${link("exchanges", each.vhost, exchangeName(each.source))}>${shownName(each.source)}</a>` },
  { label: "To", sort: "destination", show: (each) => html`<${Tag}>${each.destination_type}<//> <a href=${link(each.destination_type === "queue" ? "queues" : "exchanges", each.vhost, each.destination)}>${each.destination}</a>` },
  { label: "Routing key", sort: "routing_key", show: (each) => html`<code class="wrap">${each.routing_key}</code>` },
  { label: "Arguments", has: (each) => Object.keys(each.arguments).length > 0, show: (each) => html`<${ArgumentList} value=${each.arguments} />` },
  { label: "Metadata", has: (each) => Object.keys(each.metadata).length > 0, show: (each) => html`<${ArgumentList} value=${each.metadata} />` },
  { label: "Created", sort: "created_at", has: (each) => each.created_at, show: (each) => (each.created_at ? html`<time class="quiet small" datetime=${each.created_at} title=${each.created_at}>${minute(each.created_at)}</time>` : "") },
  {
    label: "",
    show: (each) => each.source && html`<${ConfirmButton} kind="link danger" label="Unbind" ariaLabel=${`Unbind ${each.destination} from ${each.source}, routing key ${each.routing_key}`}
      question=${`Delete the binding from ${each.source} to ${each.destination} with the routing key “${each.routing_key}”?`} act=${async () => { await call("DELETE", bindingAt(each)); reload(); return "Binding deleted."; }} />`,
  },
];

/** The bindings of one exchange or queue. `omit` is the label of the column that names it. */
export const BindingTable = ({ caption, rows, reload, omit }) => html`<${Table} caption=${caption} rows=${rows} columns=${columns(reload).filter((column) => column.label !== omit)} empty="No bindings." />`;

export function Bindings() {
  const [version, setVersion] = useState(0);
  const [hasDefault, setHasDefault] = useState(false);
  const vhosts = useVhosts();
  const add = html`<${DialogButton} label="Bind" kind="primary">${(close) => html`<${BindForm} vhost=${vhosts[0]} isVhostFree done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  const listed = (reload) => [...columns(reload).slice(0, 2), { label: "Virtual host", sort: "vhost", show: (each) => each.vhost }, ...columns(reload).slice(2)];
  const filters = html`<label class="check small"><input type="checkbox" checked=${hasDefault} onChange=${(event) => setHasDefault(event.target.checked)} /> Include the default exchange</label>`;
  return html`<h1>Bindings</h1><${Listing} caption="bindings" url="/api/bindings" initialSort="source" parameters=${{ default_exchange: hasDefault ? "" : "false" }} columns=${listed} version=${version} actions=${add} filters=${filters} empty="No bindings." />`;
}

/** The form for a new binding. The source or the queue may be given. */
export function BindForm({ vhost: given, isVhostFree, source, queue, done }) {
  const [chosen, setVhost] = useState(undefined);
  const vhost = chosen ?? given; // which is not known yet if the form opens before the list is loaded
  const [kind, setKind] = useState("queue");
  const [rows, setRows] = useState([]);
  const [notes, setNotes] = useState([]);
  const exchanges = useResource(vhost === undefined ? null : `${at("exchanges", vhost)}?columns=name`, 0);
  const queues = useResource(vhost === undefined ? null : `${at("queues", vhost)}?columns=name`, 0);
  const names = (resource) => (resource.data ?? []).map((each) => each.name).filter(Boolean);
  const submit = async ({ elements }) => {
    const from = source ?? elements.source.value;
    const to = queue ?? elements.destination.value;
    await call("POST", at("bindings", vhost, "e", from, queue || kind === "queue" ? "q" : "e", to), { routing_key: elements.key.value, arguments: readArguments(rows), metadata: readArguments(notes) });
    return `Bound ${to} to ${from}.`;
  };
  return html`<${Form} label="Bind" submit=${submit} done=${done}>
    <div class="fields">
      ${isVhostFree && html`<${VhostChoice} value=${vhost} onChange=${setVhost} />`}
      ${!source && html`<${Text} label="From exchange" name="source" list="known-exchanges" required />`}
      ${!queue && html`<${Choice} label="To" name="kind" value=${kind} onChange=${(event) => setKind(event.target.value)} options=${["queue", "exchange"]} />
        <${Text} label="Name" name="destination" list=${kind === "queue" ? "known-queues" : "known-exchanges"} required />`}
      <${Text} label="Routing key" name="key" hint="In topic exchanges, * matches one word and # any number of words." />
    </div>
    <datalist id="known-exchanges">${names(exchanges).map((name) => html`<option value=${name}></option>`)}</datalist>
    <datalist id="known-queues">${names(queues).map((name) => html`<option value=${name}></option>`)}</datalist>
    <${Arguments} value=${rows} onChange=${setRows} suggestions=${HEADER_ARGUMENTS} />
    <${Arguments} legend="Metadata" noun="metadata" value=${notes} onChange=${setNotes} suggestions=${["owner", "description"]} />
    <small class="quiet">Metadata are notes, for example the owner of the binding. They do not affect routing.</small>
  <//>`;
}
