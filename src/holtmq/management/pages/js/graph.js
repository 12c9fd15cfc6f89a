// A graph of exchanges and queues as a picture: laid out from left to right, to be moved and zoomed, each node a button.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import dagre from "../vendor/dagre/dagre.js";

const NODE_HEIGHT = 40;
const LETTER_PX = 7.4;
const LONGEST_NAME = 30;
const LEAST_SCALE = 0.4;
const START_SCALE = 0.75;
const ARROW = "M0,0 L8,4 L0,8 z";

export const shorten = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 9)}…${name.slice(-8)}` : name);

/** Where everything goes. Nodes are {id, label, sub}, edges {from, to, label}. */
export function layOut(nodes, edges) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 110, edgesep: 8, marginx: 16, marginy: 16, ranker: edges.length > 600 ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const width = Math.max(shorten(node.label).length * LETTER_PX, (node.sub ?? "").length * 6.2) + 26;
    graph.setNode(node.id, { width, height: NODE_HEIGHT });
  }
  edges.forEach((edge, place) => graph.setEdge(edge.from, edge.to, {}, String(place)));
  dagre.layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    width: Number.isFinite(width) ? width : 100,
    height: Number.isFinite(height) ? height : 100,
    nodes: new Map(nodes.map((node) => [node.id, graph.node(node.id)])),
    edges: edges.map((edge, place) => graph.edge(edge.from, edge.to, String(place)).points),
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

/** The picture. Classes come from `kind` of nodes and edges; `structure` changes when the layout has to. */
export function Graph({ title, nodes, edges, structure, onPick, isStill = false }) {
  const layout = useMemo(() => layOut(nodes, edges), [structure]);
  const [view, setView] = useState(null);
  const picture = useRef(null);
  const drag = useRef(null);
  const whole = { x: 0, y: 0, width: Math.max(layout.width, 240), height: Math.max(layout.height, 80) };
  const readable = () => {
    const box = picture.current.getBoundingClientRect();
    if (isStill || Math.min(box.width / whole.width, box.height / whole.height) >= LEAST_SCALE) return null;
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
    const points = layout.edges[place];
    if (!points) return null;
    const middle = points[Math.floor(points.length / 2)];
    return html`<g key=${`${edge.from}>${edge.to}>${place}`} class=${`edge ${edge.kind ?? ""}`}><title>${edge.title ?? edge.label ?? ""}</title><path d=${curve(points)} marker-end="url(#arrow)" style=${edge.width ? { strokeWidth: edge.width } : {}} />${edge.label && html`<text text-anchor="middle" x=${middle.x} y=${middle.y - 5}>${edge.label}</text>`}</g>`;
  };
  return html`<div class="map">
    <svg ref=${picture} class=${isStill ? "still" : ""} viewBox=${`${shown.x} ${shown.y} ${shown.width} ${shown.height}`} role="group" aria-label=${title} style=${isStill ? { maxHeight: "26rem", maxWidth: `${whole.width * 1.2}px` } : {}} ...${pan}>
      <defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto" markerUnits="userSpaceOnUse"><path d=${ARROW} fill="#8a9691" /></marker></defs>
      ${edges.map(drawEdge)}${nodes.map(drawNode)}
    </svg>
    ${!isStill && html`<div class="tools"><button aria-label="Zoom in" onClick=${() => zoom(0.75)}>+</button><button aria-label="Zoom out" onClick=${() => zoom(1.33)}>−</button><button onClick=${() => setView(whole)}>Whole picture</button></div>`}
  </div>`;
}
