import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { go, link, useResource } from "../state.js";
import { ConfirmButton, Failure, Form, Listing, DialogButton, Table, Tag, Text } from "../parts.js";
import { VhostChoice } from "../vhost-choice.js";

export function Users() {
  const [version, setVersion] = useState(0);
  const { data: permissions } = useResource("/api/permissions");
  const columns = () => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("users", each.name)}>${each.name}</a>` },
    { label: "Tags", show: (each) => each.tags.map((tag) => html`<${Tag} kind="on">${tag}<//> `) },
    { label: "Can access virtual hosts", show: (each) => (permissions ?? []).filter((one) => one.user === each.name).map((one) => one.vhost).join(", ") || html`<${Tag} kind="bad">none<//>` },
    { label: "Has password", show: (each) => (each.password_hash ? "yes" : "no") },
  ];
  const add = html`<${DialogButton} label="Add user" kind="primary">${(close) => html`<${UserForm} done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  return html`<h1>Users</h1><${Listing} caption="users" url="/api/users" columns=${columns} version=${version} actions=${add} />`;
}

const TAGS_HINT = "administrator, monitoring, policymaker or management, separated by commas. A user without tags cannot log in here.";

function UserForm({ name, tags, done }) {
  const submit = async ({ elements }) => {
    const user = name ?? elements.user.value;
    await call("PUT", at("users", user), { password: elements.password.value, tags: elements.tags.value });
    return `User ${user} ${name ? "updated" : "added"}.`;
  };
  return html`<${Form} label=${name ? "Update" : "Add"} submit=${submit} done=${done}><div class="fields">
    ${!name && html`<${Text} label="Name" name="user" required />`}
    <${Text} label="Password" name="password" type="password" autocomplete="new-password" hint=${name ? "Enter the password again. Without one, the user can only log in with a certificate." : "Without one, the user can only log in with a certificate."} />
    <${Text} label="Tags" name="tags" defaultValue=${tags ?? "management"} hint=${TAGS_HINT} /></div>
  <//>`;
}

export function UserPage({ of: [name] }) {
  const user = useResource(at("users", name));
  const permissions = useResource(at("users", name, "permissions"));
  const topics = useResource(at("users", name, "topic-permissions"));
  const remove = async () => {
    await call("DELETE", at("users", name));
    go("users");
    return `User ${name} deleted.`;
  };
  const pattern = (label) => ({ label, show: (each) => { const value = each[label.toLowerCase()]; return value ? html`<code class="wrap">${value}</code>` : html`<span class="quiet">none</span>`; } });
  const permissionColumns = [
    { label: "Virtual host", show: (each) => each.vhost }, pattern("Configure"), pattern("Write"), pattern("Read"),
    { label: "", show: (each) => html`<${ConfirmButton} kind="link danger" label="Clear" ariaLabel=${`Clear permissions in ${each.vhost}`} question=${`Clear all permissions of ${name} in ${each.vhost}?`} act=${async () => { await call("DELETE", at("permissions", each.vhost, name)); permissions.reload(); return "Permissions cleared."; }} />` },
  ];
  const topicColumns = [
    { label: "Virtual host", show: (each) => each.vhost }, { label: "Exchange", show: (each) => each.exchange }, pattern("Write"), pattern("Read"),
    { label: "", show: (each) => html`<${ConfirmButton} kind="link danger" label="Clear" ariaLabel=${`Clear topic permissions for ${each.exchange}`} question=${`Clear the topic permissions of ${name} for ${each.exchange}? The user can then use all routing keys.`} act=${async () => { await call("DELETE", at("topic-permissions", each.vhost, name, each.exchange)); topics.reload(); return "Topic permissions cleared."; }} />` },
  ];
  const setPermissions = async ({ elements }) => {
    await call("PUT", at("permissions", elements.vhost.value, name), { configure: elements.configure.value, write: elements.write.value, read: elements.read.value });
    permissions.reload();
    return "Permissions saved.";
  };
  const setTopics = async ({ elements }) => {
    await call("PUT", at("topic-permissions", elements.vhost.value, name), { exchange: elements.exchange.value, write: elements.write.value, read: elements.read.value });
    topics.reload();
    return "Topic permissions saved.";
  };
  return html`<p class="crumbs"><a href="#/users">Users</a></p><div class="row spread"><h1>${name}</h1><div class="row">
      <${DialogButton} label="Update">${(close) => html`<${UserForm} name=${name} tags=${user.data?.tags.join(", ")} done=${() => { close(); user.reload(); }} />`}<//>
      <${ConfirmButton} label="Delete" question=${`Delete the user ${name} and all its permissions?`} act=${remove} /></div></div>
    <${Failure} error=${user.error} />
    ${user.data && html`<p>${user.data.tags.map((tag) => html`<${Tag} kind="on">${tag}<//> `)}${!user.data.tags.length && html`<span class="quiet">No tags: the user cannot use the HTTP API or these pages.</span>`}</p>
    <section class="panel"><h2>Permissions</h2><p class="quiet small">Regular expressions for the names of exchanges and queues. An empty expression matches nothing.</p><${Table} caption="Permissions" rows=${permissions.data ?? []} columns=${permissionColumns} empty="No permissions in any virtual host." />
      <h3>Set permissions</h3><${Form} label="Set permissions" submit=${setPermissions}><div class="fields"><${VhostChoice} /><${Text} label="Configure" name="configure" defaultValue=".*" /><${Text} label="Write" name="write" defaultValue=".*" /><${Text} label="Read" name="read" defaultValue=".*" /></div><//></section>
    <section class="panel"><h2>Topic permissions</h2><p class="quiet small">Regular expressions for the routing keys that the user can publish with (write) and bind with (read) on a topic exchange.</p><${Table} caption="Topic permissions" rows=${topics.data ?? []} columns=${topicColumns} empty="No topic permissions: the user can use all routing keys." />
      <h3>Set topic permissions</h3><${Form} label="Set topic permissions" submit=${setTopics}><div class="fields"><${VhostChoice} /><${Text} label="Exchange" name="exchange" required /><${Text} label="Write" name="write" defaultValue=".*" /><${Text} label="Read" name="read" defaultValue=".*" /></div><//></section>`}`;
}
