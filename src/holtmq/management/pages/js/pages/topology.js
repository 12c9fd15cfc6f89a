// All exchanges and queues of a virtual host as a live graph, or the neighbourhood of one of them.

import { html, useMemo, useState } from "../html.js";
import { at, exchangeName } from "../api.js";
import { link, useResource } from "../state.js";
import { Check, Choice, Failure, Field, Tag } from "../parts.js";
import { count, rate } from "../format.js";
import { Graph, shorten } from "../graph.js";
import { useVhosts } from "../vhost-choice.js";
import { TYPES, shownName } from "./exchanges.js";

const MAX_NODES = 450;
const MAX_UNGROUPED = 40;
const MIN_GROUP = 4;
const REFRESH_MS = 2000;
const LEGEND = html`<div class="row small quiet">${TYPES.map((type) => html`<${Tag} kind=${type}>${type}<//>`)}<span class="key alternate">alternate exchange</span><span class="key dead-letters">dead letters</span></div>`;
const exchangeId = (name) => `e ${name}`;
const queueId = (name) => `q ${name}`;

function read(data) {
  const nodes = [
    ...data.exchanges.map((each) => ({ id: exchangeId(each.name), name: each.name, label: shownName(each.name), title: `exchange ${shownName(each.name)}`, kind: `exchange ${each.type}`, sub: each.rate ? `${each.type} · ${rate(each.rate)}` : each.type, isExchange: true, load: each.rate })),
    ...data.queues.map((each) => ({ id: queueId(each.name), name: each.name, label: each.name, title: `queue ${each.name}`, kind: "queue", messages: each.messages, sub: [count(each.messages), each.rate_in && `${rate(each.rate_in)} in`, each.rate_out && `${rate(each.rate_out)} out`].filter(Boolean).join(" · "), load: each.messages + each.rate_in })),
  ];
  const edges = data.edges.map((each) => {
    const from = each.kind === "dead-letters" ? queueId(each.source) : exchangeId(each.source);
    const to = each.kind === "queue" ? queueId(each.destination) : exchangeId(each.destination);
    const keys = each.keys.filter(Boolean);
    const more = each.bindings > each.keys.length ? ` and ${each.bindings - each.keys.length} more` : "";
    const words = { alternate: "alternate", "dead-letters": "dead letters" }[each.kind];
    return { from, to, kind: each.kind, title: words ?? `${each.bindings} ${each.bindings === 1 ? "binding" : "bindings"}: ${keys.join(", ") || "(empty key)"}${more}`, keys, words, bindings: each.bindings, rate: each.rate, width: each.rate ? Math.min(1.4 + Math.log10(1 + each.rate), 6) : undefined };
  });
  return { nodes, edges };
}

/** In a large graph, show queues with the same bindings as one node. */
function bundle(nodes, edges, opened, focus) {
  if (nodes.length <= MAX_UNGROUPED) return { nodes, edges };
  const links = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) {
    links.get(edge.to).push(`${edge.kind} from ${edge.from}`);
    links.get(edge.from).push(`${edge.kind} to ${edge.to}`);
  }
  const groups = new Map();
  for (const node of nodes.filter((each) => !each.isExchange && each.id !== focus)) {
    const key = `g ${[...new Set(links.get(node.id))].sort().join("|")}`;
    groups.set(key, [...(groups.get(key) ?? []), node]);
  }
  const standsFor = new Map();
  const bundles = [];
  for (const [id, members] of groups) {
    if (members.length < MIN_GROUP || opened.has(id)) continue;
    members.forEach((node) => standsFor.set(node.id, id));
    const messages = members.reduce((sum, node) => sum + node.messages, 0);
    const load = members.reduce((sum, node) => sum + node.load, 0);
    bundles.push({ id, members, label: `${count(members.length)} queues`, title: `${members.length} queues: ${common(members)}`, sub: `${common(members)} · ${count(messages)}`, kind: "queue bundle", load });
  }
  const merged = new Map();
  for (const edge of edges) {
    const [from, to] = [standsFor.get(edge.from) ?? edge.from, standsFor.get(edge.to) ?? edge.to];
    const key = `${from}|${to}|${edge.kind}`;
    const old = merged.get(key);
    if (!old) merged.set(key, { ...edge, from, to });
    else merged.set(key, { ...old, bindings: old.bindings + edge.bindings, keys: [], title: `${old.bindings + edge.bindings} bindings`, rate: (old.rate ?? 0) + (edge.rate ?? 0), width: Math.max(old.width ?? 0, edge.width ?? 0) || undefined });
  }
  return { nodes: [...nodes.filter((node) => !standsFor.has(node.id)), ...bundles], edges: [...merged.values()] };
}

function between(nodes, edges) {
  const ids = new Set(nodes.map((node) => node.id));
  return edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to));
}

/** Limit the graph to the exchanges and the busiest queues. */
function cut({ nodes, edges }) {
  if (nodes.length <= MAX_NODES) return { nodes, edges, isCut: false };
  const kept = [...nodes].sort((a, b) => Boolean(b.isExchange) - Boolean(a.isExchange) || b.load - a.load).slice(0, MAX_NODES);
  return { nodes: kept, edges: between(kept, edges), isCut: true };
}

/** The common prefix of the names of some queues. */
function common(members) {
  let prefix = members[0].name;
  for (const { name } of members) while (!name.startsWith(prefix)) prefix = prefix.slice(0, -1);
  return prefix ? `${shorten(prefix)}…` : "various";
}

const keyLabel = (edge) => (edge.keys.length ? shorten(edge.keys[0]) + (edge.bindings > 1 ? ` +${edge.bindings - 1}` : "") : "");

/** The ids within a number of steps from a node, in both directions. */
function neighbourhood(edges, start, steps) {
  const near = new Set([start]);
  for (let step = 0; step < steps; step += 1) {
    const found = edges.filter((edge) => near.has(edge.from) || near.has(edge.to)).flatMap((edge) => [edge.from, edge.to]);
    found.forEach((id) => near.add(id));
  }
  return near;
}

export function TopologyPage({ query }) {
  const vhosts = useVhosts();
  const [chosen, setChosen] = useState(query.get("vhost"));
  const vhost = chosen ?? vhosts[0];
  const [search, setSearch] = useState("");
  const [focus, setFocus] = useState(query.get("focus") ? queueId(query.get("focus")) : null);
  const [steps, setSteps] = useState(2);
  const [hidesIdle, setHidesIdle] = useState(false);
  const [opened, setOpened] = useState(new Set());
  const { data, error } = useResource(vhost === undefined ? null : at("topology", vhost), REFRESH_MS);
  const whole = useMemo(() => (data ? read(data) : { nodes: [], edges: [] }), [data]);
  const known = whole.nodes.some((node) => node.id === focus) ? focus : null;
  const near = known && neighbourhood(whole.edges, known, steps);
  const kept = whole.nodes.filter((node) => (near ? near.has(node.id) : !hidesIdle || node.load > 0));
  const bundled = cut(bundle(kept, between(kept, whole.edges), opened, known));
  const edges = bundled.edges.map((edge) => ({ ...edge, label: bundled.nodes.length <= MAX_UNGROUPED ? edge.words ?? keyLabel(edge) : "" }));
  const wanted = search.trim().toLowerCase();
  const found = wanted ? whole.nodes.filter((node) => node.label.toLowerCase().includes(wanted)) : [];
  const marked = new Set(found.map((node) => node.id));
  const isFound = (node) => marked.has(node.id) || node.id === known || node.members?.some((member) => marked.has(member.id));
  const nodes = bundled.nodes.map((node) => ({ ...node, kind: `${node.kind} ${isFound(node) ? "found" : wanted ? "dim" : ""}` }));
  const structure = `${vhost}|${nodes.map((node) => node.id).sort().join("|")}|${edges.map((edge) => `${edge.from}>${edge.to} ${edge.label}`).join("|")}`;
  const pick = (node) => (node.members ? setOpened(new Set([...opened, node.id])) : setFocus(node.id));
  const picked = whole.nodes.find((node) => node.id === known);
  return html`<h1>Topology</h1><p class="quiet">Exchanges are round, queues are square; busy lines are thicker. Select a node to see its neighbourhood. In a large graph, queues with the same bindings form a group; select it to expand it.</p>
    <div class="row" style=${{ marginBottom: ".7rem", alignItems: "end" }}>
      ${vhosts.length > 1 && html`<${Choice} label="Virtual host" options=${vhosts} value=${vhost} onChange=${(event) => { setChosen(event.target.value); setFocus(null); }} />`}
      <${Field} label="Search"><input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} onKeyDown=${(event) => event.key === "Enter" && found.length && setFocus(found[0].id)} /><//>
      ${known && html`<${Choice} label="Distance" options=${[1, 2, 3, 4]} value=${steps} onChange=${(event) => setSteps(Number(event.target.value))} /><button onClick=${() => setFocus(null)}>Show all</button>
        <a class="button" href=${picked.isExchange ? link("exchanges", vhost, exchangeName(picked.name)) : link("queues", vhost, picked.name)}>Open ${picked.label}</a>`}
      ${!known && opened.size > 0 && html`<button onClick=${() => setOpened(new Set())}>Collapse groups</button>`}
      ${!known && html`<${Check} label="Hide idle and empty" checked=${hidesIdle} onChange=${(event) => setHidesIdle(event.target.checked)} />`}
      <span class="quiet small" role="status">${data ? `${count(kept.length)} of ${count(whole.nodes.length)} shown${wanted ? `, ${count(found.length)} found` : ""}` : ""}</span>
    </div>
    ${found.length > 0 && html`<p class="row small">${found.slice(0, 12).map((node) => html`<button class="link" onClick=${() => setFocus(node.id)}>${node.label}</button>`)}${found.length > 12 && html`<span class="quiet">and ${found.length - 12} more</span>`}</p>`}
    <${Failure} error=${error} />
    ${bundled.isCut && html`<p class="note warn">The graph has more than ${MAX_NODES} nodes. It shows the exchanges and the busiest queues; use the search to find others.</p>`}
    ${data && (nodes.length ? html`<${Graph} title="Topology" nodes=${nodes} edges=${edges} structure=${structure} onPick=${pick} legend=${LEGEND} />` : html`<div class="empty">${whole.nodes.length ? "All exchanges and queues are idle and empty." : html`No queues, and no exchanges besides the predeclared ones. Add <a href="#/exchanges">exchanges</a> and <a href="#/queues">queues</a>, or import <a href="#/definitions">definitions</a>.`}</div>`)}`;
}

