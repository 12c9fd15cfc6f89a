// Charts over time, in the colours of the theme.

import { html, useEffect, useRef } from "./html.js";
import uPlot from "../vendor/uplot/uplot.js";
import { clock, count, rate } from "./format.js";

const COLOURS = ["--accent", "--blue", "--orange", "--violet"];
const HEIGHT = 180;
const SHORTEST_S = 60;

/** At least one minute. */
const timeRange = (_, low, high) => [Math.min(low, high - SHORTEST_S), high];

/** The times of the points, but two at least: the time axis of a chart with fewer points would span a day or more. */
function timesOf(points) {
  if (points.length > 1) return points.map(([at]) => at);
  const end = points[0]?.[0] ?? Date.now() / 1000;
  return [end - SHORTEST_S, end];
}

/** Convert RabbitMQ's samples of a counter, newest first, to rates per second, oldest first. */
export function asRates(samples = []) {
  const points = [];
  for (let place = samples.length - 2; place >= 0; place -= 1) {
    const [older, newer] = [samples[place + 1], samples[place]];
    const elapsedS = (newer.timestamp - older.timestamp) / 1000;
    points.push([newer.timestamp / 1000, Math.max(0, (newer.sample - older.sample) / elapsedS)]);
  }
  return points;
}

export const asLevels = (samples = []) => samples.map((each) => [each.timestamp / 1000, each.sample]).reverse();

/** A line chart. `lines` maps labels to points; all lines have the same times. */
export function Chart({ title, lines, isRate = false }) {
  const place = useRef(null);
  const plot = useRef(null);
  const labels = Object.keys(lines);
  const times = timesOf(lines[labels[0]]);
  const data = [times, ...labels.map((label) => times.map((_, place) => lines[label].at(place - times.length)?.[1] ?? null))];
  const show = isRate ? rate : count;
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--quiet");
    const axis = { stroke: ink, grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const options = {
      width: place.current.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 28, 0, 0],
      cursor: { y: false },
      scales: { x: { range: timeRange }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [{ ...axis, size: 28, space: 90, values: ({ scales: { x } }, values) => values.map((at) => (at - x.min < (x.max - x.min) / 20 ? "" : clock(at * 1000))) }, { ...axis, size: 64, values: (_, values) => values.map(show) }],
      series: [{}, ...labels.map((label, at) => ({ label, stroke: style.getPropertyValue(COLOURS[at]), width: 2, points: { show: false } }))],
    };
    plot.current = new uPlot(options, data, place.current);
    const observer = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [labels.join(), document.documentElement.dataset.theme]);
  useEffect(() => plot.current?.setData(data));
  const last = (label) => lines[label].at(-1)?.[1];
  const summary = labels.map((label) => `${label} ${show(last(label) ?? 0)}`).join(", ");
  return html`<figure style=${{ margin: 0 }}>
    <figcaption><h2>${title}</h2></figcaption>
    <div class="chart" ref=${place} role="img" aria-label=${`${title}: ${summary}`}></div>
    <ul class="legend">${labels.map((label, at) => html`<li><i class=${`c${at}`}></i>${label} <b>${show(last(label) ?? 0)}</b></li>`)}</ul>
  </figure>`;
}
