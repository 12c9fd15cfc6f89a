import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { useResource } from "../state.js";
import { ArgumentList, Arguments, Choice, ConfirmButton, Failure, Form, DialogButton, Table, Text, readArguments } from "../parts.js";
import { VhostChoice } from "../vhost-choice.js";

const SETTINGS = ["message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "dead-letter-exchange", "dead-letter-routing-key", "delivery-limit", "alternate-exchange"];

export function Policies() {
  const { data, error, reload } = useResource("/api/policies");
  const columns = [
    { label: "Name", show: (each) => each.name },
    { label: "Virtual host", show: (each) => each.vhost },
    { label: "Pattern", show: (each) => html`<code class="wrap">${each.pattern}</code>` },
    { label: "Applies to", show: (each) => each["apply-to"] },
    { label: "Definition", show: (each) => html`<${ArgumentList} value=${each.definition} />` },
    { label: "Priority", number: true, show: (each) => each.priority },
    { label: "", show: (each) => html`<${ConfirmButton} kind="link danger" label="Delete" ariaLabel=${`Delete the policy ${each.name}`} question=${`Delete the policy ${each.name}?`} act=${async () => { await call("DELETE", at("policies", each.vhost, each.name)); reload(); return `Policy ${each.name} deleted.`; }} />` },
  ];
  return html`<div class="row spread"><h1>Policies</h1><${DialogButton} label="Add policy" kind="primary">${(close) => html`<${PolicyForm} done=${() => { close(); reload(); }} />`}<//></div>
    <p class="quiet">A policy sets optional arguments of all queues and exchanges whose name matches its pattern. If several match, the one with the highest priority applies.</p><${Failure} error=${error} />
    ${data && html`<${Table} caption="Policies" rows=${data} columns=${columns} empty="No policies." />`}`;
}

function PolicyForm({ done }) {
  const [rows, setRows] = useState([{ name: "", type: "number", text: "" }]);
  const submit = async ({ elements }) => {
    const body = { pattern: elements.pattern.value, "apply-to": elements.target.value, priority: Number(elements.priority.value || 0), definition: readArguments(rows) };
    await call("PUT", at("policies", elements.vhost.value, elements.policy.value), body);
    return `Policy ${elements.policy.value} saved.`;
  };
  return html`<${Form} label="Save" submit=${submit} done=${done}>
    <div class="fields"><${VhostChoice} /><${Text} label="Name" name="policy" required /><${Text} label="Pattern" name="pattern" required hint="Regular expression for names, for example ^orders" /><${Choice} label="Applies to" name="target" options=${["all", "queues", "exchanges"]} /><${Text} label="Priority" name="priority" type="number" defaultValue="0" /></div>
    <${Arguments} legend="Settings" noun="setting" value=${rows} onChange=${setRows} suggestions=${SETTINGS} />
  <//>`;
}
