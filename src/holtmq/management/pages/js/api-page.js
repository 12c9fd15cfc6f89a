// The documentation of the HTTP API, made from its OpenAPI description.

import { html, render, useEffect, useState } from "./html.js";
import { Failure, Tag } from "./parts.js";

document.documentElement.dataset.theme = localStorage.getItem("holtmq.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

function Operation({ method, path, operation }) {
  const body = operation.requestBody?.content["application/json"].schema;
  const parameters = operation.parameters.filter((each) => each.in === "query");
  return html`<details class="panel"><summary><${Tag} kind=${{ get: "on", delete: "bad" }[method] ?? "topic"}>${method.toUpperCase()}<//> <code class="wrap">${path}</code> <span class="quiet">${operation.summary}</span></summary>
    ${operation.description && html`<p>${operation.description}</p>`}
    ${parameters.length > 0 && html`<h3>Query parameters</h3><dl class="facts plain small">${parameters.map((each) => html`<dt><code>${each.name}</code></dt><dd>${each.description}</dd>`)}</dl>`}
    ${body && html`<h3>Request body</h3><pre class="payload" tabindex="0">${JSON.stringify(body, null, 2)}</pre>`}
    <h3>Responses</h3><ul class="small">${Object.entries(operation.responses).map(([status, response]) => html`<li><b>${status}</b> ${response.description}</li>`)}</ul></details>`;
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
  return html`<p class="crumbs"><a href="/">HoltMQ</a></p><h1>HTTP API</h1><p>${api.info.description} This is version ${api.info.version}. Tools can use the <a href="/api/openapi.json">OpenAPI description</a>.</p>
    <p class="small">Example: <code class="wrap">curl -u guest:guest ${location.origin}/api/queues/%2F</code></p>
    ${tags.map((tag) => html`<h2 id=${tag}>${tag}</h2>${operations.filter((each) => each.operation.tags[0] === tag).map((each) => html`<${Operation} ...${each} />`)}`)}`;
}

render(html`<${Page} />`, document.getElementById("app"));
