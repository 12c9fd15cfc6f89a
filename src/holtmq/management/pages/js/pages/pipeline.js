import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { notify, useResource } from "../state.js";
import { Failure, Table, Tag } from "../parts.js";
import { bytes, count, duration, moment, rate } from "../format.js";

const HEADING = { margin: "1rem 0 .6rem" };
const STATE_KINDS = { running: "on", finished: "", failed: "bad", interrupted: "bad", lost: "bad", silent: "", planned: "" };

const runColumns = [
  { label: "Job", show: (each) => html`${each.job}<div class="quiet small">${each.user}, ${each.vhost}</div>` },
  { label: "State", show: (each) => html`<${Tag} kind=${STATE_KINDS[each.state]}>${each.state}<//>${each.error && html`<div class="small wrap">${each.error}</div>`}` },
  { label: "Input", show: (each) => html`<code class="wrap">${each.input}</code>` },
  { label: "Output", show: (each) => (each.output ? html`<code class="wrap">${each.output}</code>` : "–") },
  { label: "Rows", number: true, show: (each) => html`${count(each.rows)}${each.duration_ms != null && html`<div class="quiet small">${rate((1000 * each.rows) / Math.max(1000, each.duration_ms))}</div>`}` },
  { label: "Lag", number: true, show: (each) => count(each.lag) },
  { label: "Started", show: (each) => moment(each.started_at) },
  { label: "Duration", number: true, show: (each) => (each.duration_ms == null ? "–" : duration(each.duration_ms)) },
];

/** The runs that jobs have announced, and how a job announces itself. */
function Runs() {
  const { data, error } = useResource("/api/runs");
  return html`<h2 style=${HEADING}>Runs</h2><${Failure} error=${error} />
    ${data && (data.length
      ? html`<${Table} caption="Runs" rows=${data} columns=${runColumns} />`
      : html`<p class="quiet">No runs yet. Jobs that use this broker appear here while it runs. Start any other job with <code class="wrap">--http-url ${location.origin}</code>.</p>`)}`;
}

export function Pipeline({ user }) {
  const { data, error } = useResource("/api/reports");
  const sees = user.tags.some((tag) => ["administrator", "monitoring"].includes(tag));
  const nodes = useResource(sees ? "/api/nodes" : null, 0);
  const [opened, setOpened] = useState(null);
  const open = async (report, isOutside) => {
    try {
      const { path } = await call("POST", at("reports", report.name, "ticket"));
      if (isOutside) window.open(path, "_blank", "noopener");
      else setOpened({ ...report, path });
    } catch (failure) {
      notify(failure.message, "error");
    }
  };
  const columns = [
    { label: "Report", show: (each) => html`<button class="link" aria-pressed=${opened?.name === each.name} onClick=${() => open(each)}>${each.title}</button>` },
    { label: "File", show: (each) => html`<code class="wrap">${each.name}</code>` },
    { label: "Written", show: (each) => moment(each.written_at) },
    { label: "Size", number: true, show: (each) => bytes(each.bytes) },
    { label: "", show: (each) => html`<button class="link" aria-label=${`Open ${each.title} in a new tab`} onClick=${() => open(each, true)}>New tab</button>` },
  ];
  return html`<h1>Pipeline</h1><${Runs} /><h2 style=${HEADING}>Reports</h2><p class="quiet">Reports written by <code>holtmq pipeline report</code>, newest first.</p><${Failure} error=${error} />
    ${data && (data.length ? html`<${Table} caption="Reports" rows=${data} columns=${columns} />` : html`<${NoReports} node=${nodes.data?.[0]} />`)}
    ${opened && html`<div class="row spread" style=${HEADING}><h2>${opened.title}</h2><button onClick=${() => setOpened(null)}>Close report</button></div>
      <iframe class="report" title=${opened.title} src=${opened.path} sandbox="allow-scripts allow-downloads"></iframe>`}`;
}

/** What the page is for, and how to get a report into it. `node` is known to users with the tag monitoring only. */
function NoReports({ node }) {
  const folder = node?.reports_dir ?? "reports/";
  return html`<section class="panel"><h2>No reports yet</h2>
    <p>A pipeline job on Spark routes archived or streamed messages through the same exchanges and bindings as this broker. Its report shows message volumes, the most frequent routing keys, unroutable messages, and bindings that are idle or overlap. Reports are HTML files; this page lists the ones in the report folder and opens them.</p>
    <ol class="steps">
      <li>${node?.reports_dir
        ? html`The report folder of this broker is <code class="wrap">${node.reports_dir}</code>.`
        : html`${node && "This broker was started without a report folder. "}Start the broker with a report folder:<pre class="payload" tabindex="0">holtmq serve --reports ${folder}</pre>`}</li>
      <li>Write a report into that folder:<pre class="payload" tabindex="0">holtmq pipeline report ARCHIVE --definitions definitions.json --html ${folder.replace(/\/?$/, "/")}traffic.html --title "Traffic"</pre>
        <span class="quiet small">ARCHIVE is a directory of messages written by <code>holtmq pipeline archive</code>. The <a href="#/definitions">Definitions page</a> exports <code>definitions.json</code>.</span></li>
    </ol>
    <p class="small">The guide is <code>docs/pipeline.md</code>; <code>holtmq pipeline --help</code> lists all jobs. Scripts can list reports through the <a href="/api/#reports">HTTP API</a>.</p></section>`;
}
