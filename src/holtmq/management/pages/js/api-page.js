// The description of the API, as a page.

import { html, render, useEffect, useState } from "./html.js";
import { Failure, Tag } from "./parts.js";

document.documentElement.dataset.theme = localStorage.getItem("holtmq.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function Operation({ method, path, operation }) {
  const body = operation.requestBody?.content["application/json"].schema;
  const named = operation.parameters.filter((each) => each.in === "query").map((each) => each.name);
  return html`<details class="panel"><summary><${Tag} kind=${{ get: "on", delete: "bad" }[method] ?? "topic"}>${method.toUpperCase()}<//> <code class="wrap">${path}</code> <span class="quiet">${operation.summary}</span></summary>
    ${operation.description && html`<p>${operation.description}</p>`}
    ${named.length > 0 && html`<p class="small">Query: <code class="wrap">${named.join(", ")}</code></p>`}
    ${body && html`<p class="small">Body:</p><pre class="payload" tabindex="0">${JSON.stringify(body, null, 2)}</pre>`}
    <ul class="small">${Object.entries(operation.responses).map(([status, response]) => html`<li><b>${status}</b> ${response.description}</li>`)}</ul></details>`;
}

function Page() {
  const [state, setState] = useState({});
  useEffect(() => {
    fetch("/api/openapi.json").then((response) => response.json()).then((api) => setState({ api }), (error) => setState({ error }));
  }, []);
  const { api, error } = state;
  if (!api) return html`<h1>HTTP API</h1><${Failure} error=${error} />`;
  const operations = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const tags = [...new Set(operations.map((each) => each.operation.tags[0]))];
  return html`<p class="crumbs"><a href="/">HoltMQ</a></p><h1>HTTP API</h1><p>${api.info.description} Version ${api.info.version}; as <a href="/api/openapi.json">OpenAPI</a>, for tools.</p>
    <p class="small">For example: <code class="wrap">curl -u guest:guest ${location.origin}/api/queues/%2F</code></p>
    ${tags.map((tag) => html`<h2>${tag}</h2>${operations.filter((each) => each.operation.tags[0] === tag).map((each) => html`<${Operation} ...${each} />`)}`)}`;
}

render(html`<${Page} />`, document.getElementById("app"));
