// The route of a message, and why it takes it; optionally with a binding that does not exist yet.

import { html, useEffect, useState } from "../html.js";
import { at, call, exchangeName } from "../api.js";
import { link, notify, useDebounced, useResource } from "../state.js";
import { ArgumentList, Arguments, Check, Choice, Failure, Tag, Text, readArguments } from "../parts.js";
import { Graph } from "../graph.js";
import { useVhosts } from "../vhost-choice.js";
import { shownName } from "./exchanges.js";

const NO_DRAFT = { source: "", kind: "queue", destination: "", key: "", rows: [] };

export function Explorer({ query }) {
  const vhosts = useVhosts();
  const [chosen, setChosen] = useState(query.get("vhost"));
  const vhost = chosen ?? vhosts[0];
  const [exchange, setExchange] = useState(query.get("exchange") ?? "");
  const [key, setKey] = useState(query.get("key") ?? "");
  const [headers, setHeaders] = useState([]);
  const [hasDraft, setHasDraft] = useState(false);
  const [draft, setDraft] = useState(NO_DRAFT);
  const [answer, setAnswer] = useState({});
  const exchanges = useResource(vhost === undefined ? null : `${at("exchanges", vhost)}?columns=name,type`, 0);
  const queues = useResource(vhost === undefined ? null : `${at("queues", vhost)}?columns=name`, 0);
  const question = useDebounced(JSON.stringify({ vhost, exchange, key, headers, draft: hasDraft ? draft : null }), 200);
  useEffect(() => {
    let isStale = false;
    const { vhost, exchange, key, headers, draft } = JSON.parse(question);
    if (vhost === undefined) return undefined;
    const ask = async () => {
      const url = at("exchanges", vhost, exchangeName(exchange), "explain");
      const body = { routing_key: key, headers: readArguments(headers) };
      const now = await call("POST", url, body);
      let then = null;
      if (draft?.source && draft.destination) {
        const drafts = [{ source: draft.source, destination: draft.destination, destination_type: draft.kind, routing_key: draft.key, arguments: readArguments(draft.rows) }];
        then = await call("POST", url, { ...body, drafts });
      }
      return { now, then };
    };
    ask().then((answer) => isStale || setAnswer(answer), (error) => isStale || setAnswer({ error }));
    return () => { isStale = true; };
  }, [question]);
  const names = (resource) => (resource.data ?? []).map((each) => each.name);
  const change = (part) => setDraft({ ...draft, ...part });
  const addDraft = async () => {
    try {
      const kind = draft.kind === "queue" ? "q" : "e";
      await call("POST", at("bindings", vhost, "e", draft.source, kind, draft.destination), { routing_key: draft.key, arguments: readArguments(draft.rows) });
      notify(`Bound ${draft.destination} to ${draft.source}.`);
      setHasDraft(false);
      setDraft(NO_DRAFT);
    } catch (error) {
      setAnswer({ ...answer, error });
    }
  };
  const { now, then, error } = answer;
  return html`<h1>Route explorer</h1><p class="quiet">Shows which queues a message reaches, through which bindings, and which bindings almost match. Nothing is published.</p>
    <section class="panel form">
      <div class="fields">
        ${vhosts.length > 1 && html`<${Choice} label="Virtual host" options=${vhosts} value=${vhost} onChange=${(event) => setChosen(event.target.value)} />`}
        <${Choice} label="Exchange" value=${exchange} onChange=${(event) => setExchange(event.target.value)} options=${names(exchanges).map((name) => ({ value: name, label: shownName(name) }))} />
        <${Text} label="Routing key" value=${key} onInput=${(event) => setKey(event.target.value)} />
      </div>
      <${Arguments} legend="Headers" noun="header" value=${headers} onChange=${setHeaders} />
      <${Check} label="Try a new binding" checked=${hasDraft} onChange=${(event) => setHasDraft(event.target.checked)} />
      ${hasDraft && html`<fieldset><legend>New binding</legend><div class="form"><div class="fields">
        <${Text} label="From exchange" list="draft-exchanges" value=${draft.source} onInput=${(event) => change({ source: event.target.value })} />
        <${Choice} label="To" value=${draft.kind} options=${["queue", "exchange"]} onChange=${(event) => change({ kind: event.target.value })} />
        <${Text} label="Name" list=${draft.kind === "queue" ? "draft-queues" : "draft-exchanges"} value=${draft.destination} onInput=${(event) => change({ destination: event.target.value })} />
        <${Text} label="Binding key" value=${draft.key} onInput=${(event) => change({ key: event.target.value })} /></div>
        <${Arguments} legend="Binding arguments" value=${draft.rows} onChange=${(rows) => change({ rows })} suggestions=${["x-match"]} />
        <div class="row end"><button class="primary" disabled=${!then} onClick=${addDraft}>Create binding</button></div></div></fieldset>`}
      <datalist id="draft-exchanges">${names(exchanges).filter(Boolean).map((name) => html`<option value=${name}></option>`)}</datalist>
      <datalist id="draft-queues">${names(queues).map((name) => html`<option value=${name}></option>`)}</datalist>
    </section>
    <${Failure} error=${error} />
    ${then && html`<${Difference} now=${now} then=${then} />`}
    ${now && html`<${Explained} explanation=${then ?? now} before=${then ? now : null} vhost=${vhost} />`}`;
}

function Difference({ now, then }) {
  const gained = then.queues.filter((queue) => !now.queues.includes(queue));
  const lost = now.queues.filter((queue) => !then.queues.includes(queue));
  const changes = [gained.length && `also reaches ${gained.join(", ")}`, lost.length && `no longer reaches ${lost.join(", ")}`].filter(Boolean);
  return html`<p class=${`note ${changes.length ? "warn" : ""}`} role="status">With the new binding, the message ${changes.join(" and ") || "reaches the same queues"}.</p>`;
}

const bindingKey = (each) => JSON.stringify([each.destination_type, each.destination, each.routing_key, each.arguments]);

/** The route of a message as a drawing, and hop by hop as text. */
export function Explained({ explanation, before, vhost }) {
  const { queues, hops, routing_keys: keys } = explanation;
  const old = new Set((before?.hops ?? []).flatMap((hop) => hop.matches.map((match) => `${hop.exchange} ${bindingKey(match)}`)));
  const isNew = (hop, match) => Boolean(before) && !old.has(`${hop.exchange} ${bindingKey(match)}`);
  const nodes = new Map();
  const edges = [];
  for (const hop of hops) nodes.set(`exchange ${hop.exchange}`, { label: shownName(hop.exchange), kind: `exchange ${hop.type} lit`, sub: hop.type });
  for (const hop of hops) {
    const from = `exchange ${hop.exchange}`;
    const add = (binding, kind, label) => {
      const to = `${binding.destination_type} ${binding.destination}`;
      const isLit = kind !== "near";
      if (!nodes.has(to)) nodes.set(to, { label: shownName(binding.destination), kind: `${binding.destination_type} ${isLit ? "lit" : "dim"}`, sub: binding.destination_type });
      else if (isLit) nodes.get(to).kind = nodes.get(to).kind.replace("dim", "lit");
      edges.push({ from, to, kind, label, title: binding.reason });
    };
    for (const match of hop.matches) add(match, isNew(hop, match) ? "lit new" : "lit", match.routing_key);
    for (const miss of hop.near_misses.slice(0, 6)) add(miss, "near", miss.routing_key);
    const cause = `alternate exchange of ${hop.exchange}`;
    const next = hops.find((other) => other.cause === cause || other.cause.startsWith(`${cause} (set by policy `));
    if (!hop.matches.length && next) edges.push({ from, to: `exchange ${next.exchange}`, kind: "lit", label: "no match" });
  }
  const list = [...nodes].map(([id, node]) => ({ id, ...node }));
  const structure = JSON.stringify([[...nodes.keys()], edges.map((edge) => [edge.from, edge.to, edge.kind, edge.label])]);
  return html`<div class="grid wide-first" style=${{ marginTop: "1rem" }}>
    <section class="panel"><h2>Route</h2><${Graph} title="Route of the message" nodes=${list} edges=${edges} structure=${structure} isStill />
      <p class="small quiet">Thick green lines are the route of the message. Grey dashed lines are bindings that almost match.</p></section>
    <section class="panel" aria-live="polite"><h2>${queues.length ? `Routed to ${queues.length === 1 ? "1 queue" : `${queues.length} queues`}` : "Not routed to any queue"}</h2>
      ${queues.length > 0 && html`<p>${queues.map((queue) => html`<a href=${link("queues", vhost ?? explanation.vhost, queue)}>${queue}</a> `)}</p>`}
      ${keys.length > 1 && html`<p class="small quiet">Routing keys, including CC and BCC: ${keys.join(", ")}</p>`}
      ${hops.map((hop) => html`<div class="hop"><h3>${shownName(hop.exchange)} <${Tag} kind=${hop.type}>${hop.type}<//></h3><p class="small quiet">${hop.cause}; ${hop.matches.length} of ${hop.bindings} bindings match${hop.note ? `; ${hop.note}` : ""}</p>
        ${hop.matches.length > 0 && html`<ul>${hop.matches.map((match) => html`<li>→ ${match.destination_type} <b>${match.destination}</b> by <code>${match.routing_key || "(empty key)"}</code> <${ArgumentList} value=${match.arguments} />: ${match.reason}${match.note ? ` (${match.note})` : ""} ${isNew(hop, match) && html`<${Tag} kind="bad">new<//>`}</li>`)}</ul>`}
        ${hop.near_misses.length > 0 && html`<details open=${!hop.matches.length}><summary>Near misses: ${hop.near_misses.length}</summary><ul>${hop.near_misses.map((miss) => html`<li>${miss.destination_type} <b>${miss.destination}</b> by <code>${miss.routing_key || "(empty key)"}</code> <${ArgumentList} value=${miss.arguments} />: ${miss.reason}</li>`)}</ul></details>`}
      </div>`)}
    </section>
  </div>`;
}
