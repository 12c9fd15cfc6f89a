// A graph of exchanges and queues, laid out from left to right. It can be panned and zoomed; each node is a button.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import dagre from "../vendor/dagre/dagre.js";

const NODE_HEIGHT = 40;
const LETTER_PX = 7.4;
const LONGEST_NAME = 30;
const SMALL_LETTER_PX = 6.4;
const LABEL_HEIGHT = 16;
const LEAST_SCALE = 0.4;
const START_SCALE = 0.75;
const LARGEST_SCALE = 1.35;
const ARROW = "M0,0 L8,4 L0,8 z";

export const shorten = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 9)}…${name.slice(-8)}` : name);

/** Compute the position of everything. Nodes are {id, label, sub}, edges {from, to, label}. A label gets space of its own. */
export function layOut(nodes, edges) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: edges.some((edge) => edge.label) ? 64 : 110, edgesep: 8, marginx: 16, marginy: 16, ranker: edges.length > 600 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const width = Math.max(shorten(node.label).length * LETTER_PX, (node.sub ?? "").length * SMALL_LETTER_PX) + 26;
    graph.setNode(node.id, { width, height: NODE_HEIGHT });
  }
  edges.forEach((edge, place) => {
    const size = edge.label ? { width: edge.label.length * SMALL_LETTER_PX + 10, height: LABEL_HEIGHT, labelpos: "c" } : {};
    graph.setEdge(edge.from, edge.to, size, String(place));
  });
  dagre.layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    width: Number.isFinite(width) ? width : 100,
    height: Number.isFinite(height) ? height : 100,
    nodes: new Map(nodes.map((node) => [node.id, graph.node(node.id)])),
    edges: edges.map((edge, place) => graph.edge(edge.from, edge.to, String(place))),
  };
}

function curve(points) {
  const [first, ...rest] = points;
  let path = `M${first.x},${first.y}`;
  for (let place = 0; place < rest.length - 1; place += 1) {
    const here = rest[place];
    const next = rest[place + 1];
    path += ` Q${here.x},${here.y} ${(here.x + next.x) / 2},${(here.y + next.y) / 2}`;
  }
  return `${path} L${rest.at(-1).x},${rest.at(-1).y}`;
}

/** The point of the curve beside the place that the layout reserved for a label. */
function labelPoint({ points, x, y }) {
  const distance = (point) => (point.x - x) ** 2 + (point.y - y) ** 2;
  const at = points.reduce((best, point, place) => (distance(point) < distance(points[best]) ? place : best), 0);
  const [before, here, after] = [points[at - 1], points[at], points[at + 1]];
  if (!before || !after) return { x, y };
  const start = at === 1 ? before : { x: (before.x + here.x) / 2, y: (before.y + here.y) / 2 };
  const end = { x: (here.x + after.x) / 2, y: (here.y + after.y) / 2 };
  return { x: start.x / 4 + here.x / 2 + end.x / 4, y: start.y / 4 + here.y / 2 + end.y / 4 };
}

/** The drawing. `kind` of a node or edge gives its classes; the layout is computed again when `structure` changes. */
export function Graph({ title, nodes, edges, structure, onPick, legend, isStill = false }) {
  const layout = useMemo(() => layOut(nodes, edges), [structure]);
  const [view, setView] = useState(null);
  const picture = useRef(null);
  const drag = useRef(null);
  const whole = { x: 0, y: 0, width: Math.max(layout.width, 240), height: Math.max(layout.height, 80) };
  const fitted = () => {
    const box = picture.current.getBoundingClientRect();
    const [width, height] = [Math.max(whole.width, box.width / LARGEST_SCALE), Math.max(whole.height, box.height / LARGEST_SCALE)];
    return { x: (whole.width - width) / 2, y: (whole.height - height) / 2, width, height };
  };
  const readable = () => {
    if (isStill) return null;
    const box = picture.current.getBoundingClientRect();
    if (Math.min(box.width / whole.width, box.height / whole.height) >= LEAST_SCALE) return fitted();
    return { x: 0, y: 0, width: box.width / START_SCALE, height: box.height / START_SCALE };
  };
  useEffect(() => setView(readable()), [structure]);
  const shown = view ?? whole;
  const zoom = (factor, at = { x: 0.5, y: 0.5 }) =>
    setView((old) => {
      const now = old ?? whole;
      const width = Math.min(Math.max(now.width * factor, 120), Math.max(whole.width, whole.height) * 3);
      const height = (now.height * width) / now.width;
      return { x: now.x + (now.width - width) * at.x, y: now.y + (now.height - height) * at.y, width, height };
    });
  const onWheel = (event) => {
    event.preventDefault();
    const box = picture.current.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.15 : 0.87, { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height });
  };
  useEffect(() => {
    if (isStill) return undefined;
    const svg = picture.current;
    svg.addEventListener("wheel", onWheel, { passive: false });
    return () => svg.removeEventListener("wheel", onWheel);
  });
  const onPointerMove = (event) => {
    if (!drag.current) return;
    const scale = shown.width / picture.current.getBoundingClientRect().width;
    setView({ ...drag.current.view, x: drag.current.view.x - (event.clientX - drag.current.x) * scale, y: drag.current.view.y - (event.clientY - drag.current.y) * scale });
  };
  const pan = isStill
    ? {}
    : { onPointerDown: (event) => { if (!event.target.closest(".node")) { drag.current = { x: event.clientX, y: event.clientY, view: shown }; } }, onPointerMove, onPointerUp: () => { drag.current = null; }, onPointerLeave: () => { drag.current = null; } };
  const drawNode = (node) => {
    const place = layout.nodes.get(node.id);
    if (!place) return null;
    const pick = () => onPick?.(node);
    return html`<g key=${node.id} class=${`node ${node.kind}`} transform=${`translate(${place.x},${place.y})`} tabindex=${onPick ? 0 : undefined} role=${onPick ? "button" : "img"} aria-label=${`${node.title ?? node.label}${node.sub ? `, ${node.sub}` : ""}`}
        onClick=${pick} onKeyDown=${(event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick())}>
      <title>${node.label}</title>
      <rect x=${-place.width / 2} y=${-NODE_HEIGHT / 2} width=${place.width} height=${NODE_HEIGHT} rx=${node.kind.includes("exchange") ? 20 : 6} />
      <text text-anchor="middle" y=${node.sub ? -2 : 5}>${shorten(node.label)}</text>${node.sub && html`<text class="sub" text-anchor="middle" y="13">${node.sub}</text>`}
    </g>`;
  };
  const drawEdge = (edge, place) => {
    const { points } = layout.edges[place] ?? {};
    if (!points) return null;
    return html`<g key=${`${edge.from}>${edge.to}>${place}`} class=${`edge ${edge.kind ?? ""}`}><title>${edge.title ?? edge.label ?? ""}</title><path d=${curve(points)} marker-end="url(#arrow)" style=${edge.width ? { strokeWidth: edge.width } : {}} /></g>`;
  };
  const drawLabel = (edge, place) => {
    if (!edge.label || layout.edges[place]?.x === undefined) return null;
    const { x, y } = labelPoint(layout.edges[place]);
    return html`<text key=${`${edge.from}>${edge.to}>${place}`} class=${`edge-label ${edge.kind ?? ""}`} text-anchor="middle" x=${x} y=${y + 4}>${edge.label}</text>`;
  };
  return html`<div class="map">
    ${!isStill && html`<div class="tools">${legend}<div class="row"><button aria-label="Zoom in" onClick=${() => zoom(0.75)}>+</button><button aria-label="Zoom out" onClick=${() => zoom(1.33)}>−</button><button onClick=${() => setView(fitted())}>Fit</button></div></div>`}
    <svg ref=${picture} class=${isStill ? "still" : ""} viewBox=${`${shown.x} ${shown.y} ${shown.width} ${shown.height}`} role="group" aria-label=${title} style=${isStill ? { maxHeight: "26rem", maxWidth: `${whole.width * 1.2}px` } : {}} ...${pan}>
      <defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto" markerUnits="userSpaceOnUse"><path d=${ARROW} fill="#8a9691" /></marker></defs>
      ${edges.map(drawEdge)}${edges.map(drawLabel)}${nodes.map(drawNode)}
    </svg>
  </div>`;
}
