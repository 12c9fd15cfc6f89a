import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { ConfirmButton, Form, Listing, DialogButton, Text } from "../parts.js";
import { bytes, count, rateOf } from "../format.js";

export function Vhosts({ user }) {
  const [version, setVersion] = useState(0);
  const isAdministrator = user.tags.includes("administrator");
  const columns = (reload) => [
    { label: "Name", sort: "name", show: (each) => html`${each.name}${each.description && html`<div class="quiet small">${each.description}</div>`}` },
    { label: "Ready", sort: "messages_ready", number: true, show: (each) => count(each.messages_ready) },
    { label: "Unacknowledged", sort: "messages_unacknowledged", number: true, show: (each) => count(each.messages_unacknowledged) },
    { label: "Received", number: true, sort: "recv_oct_details.rate", show: (each) => `${bytes(rateOf(each, "recv_oct"))}/s` },
    { label: "Sent", number: true, sort: "send_oct_details.rate", show: (each) => `${bytes(rateOf(each, "send_oct"))}/s` },
    { label: "", show: (each) => isAdministrator && html`<${ConfirmButton} kind="link danger" label="Delete" ariaLabel=${`Delete ${each.name}`} question=${`Delete the virtual host ${each.name} with all its exchanges, queues and messages?`} act=${async () => { await call("DELETE", at("vhosts", each.name)); reload(); return `Virtual host ${each.name} deleted.`; }} />` },
  ];
  const submit = async ({ elements }) => {
    await call("PUT", at("vhosts", elements.vhost.value), { description: elements.description.value });
    return `Virtual host ${elements.vhost.value} created.`;
  };
  const add = isAdministrator && html`<${DialogButton} label="Add virtual host" kind="primary">${(close) => html`<${Form} label="Add" submit=${submit} done=${() => { close(); setVersion(version + 1); }}><div class="fields"><${Text} label="Name" name="vhost" required /><${Text} label="Description" name="description" /></div><//>`}<//>`;
  return html`<h1>Virtual hosts</h1><${Listing} caption="virtual hosts" url="/api/vhosts" columns=${columns} version=${version} actions=${add} />`;
}
