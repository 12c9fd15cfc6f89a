import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { tell, useResource } from "../state.js";
import { Failure, Table } from "../parts.js";
import { bytes, moment } from "../format.js";

export function Pipeline() {
  const { data, error } = useResource("/api/reports");
  const [opened, setOpened] = useState(null);
  const open = async (report, isOutside) => {
    try {
      const { path } = await call("POST", at("reports", report.name, "ticket"));
      if (isOutside) window.open(path, "_blank", "noopener");
      else setOpened({ ...report, path });
    } catch (failure) {
      tell(failure.message, "error");
    }
  };
  const columns = [
    { label: "Report", show: (each) => html`<button class="link" onClick=${() => open(each)}>${each.title}</button>` },
    { label: "File", show: (each) => html`<code>${each.name}</code>` },
    { label: "Written", show: (each) => moment(each.written_at) },
    { label: "Size", number: true, show: (each) => bytes(each.bytes) },
    { label: "", show: (each) => html`<button class="link" aria-label=${`Open ${each.title} in a tab of its own`} onClick=${() => open(each, true)}>New tab</button>` },
  ];
  const empty = html`No reports. Start the broker with <code>--reports FOLDER</code> and let <code>holtmq pipeline report … --html FOLDER/name.html</code> write there.`;
  return html`<h1>Pipeline</h1><p class="quiet">Reports that jobs on Spark left in the broker's folder for them.</p><${Failure} error=${error} />
    ${data && html`<${Table} caption="Reports" rows=${data} columns=${columns} empty=${empty} />`}
    ${opened && html`<h2 style=${{ marginTop: "1rem" }}>${opened.title}</h2><iframe class="report" title=${opened.title} src=${opened.path} sandbox="allow-scripts allow-downloads"></iframe>`}`;
}
