import { html, useState } from "../html.js";
import { at, call } from "../api.js";
import { go, link, useResource } from "../state.js";
import { Confirmed, Failure, Form, Listing, Opens, Table, Tag, Text } from "../parts.js";
import { VhostChoice } from "../vhosts.js";

export function Users() {
  const [version, setVersion] = useState(0);
  const { data: permissions } = useResource("/api/permissions");
  const columns = () => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("users", each.name)}>${each.name}</a>` },
    { label: "Tags", show: (each) => each.tags.map((tag) => html`<${Tag} kind="on">${tag}<//> `) },
    { label: "May enter", show: (each) => (permissions ?? []).filter((one) => one.user === each.name).map((one) => one.vhost).join(", ") || html`<${Tag} kind="bad">no vhost<//>` },
    { label: "Password", show: (each) => (each.password_hash ? "yes" : "none") },
  ];
  const add = html`<${Opens} label="Add a user" kind="primary">${(close) => html`<${UserForm} done=${() => { close(); setVersion(version + 1); }} />`}<//>`;
  return html`<h1>Users</h1><${Listing} caption="users" url="/api/users" columns=${columns} version=${version} actions=${add} />`;
}

const TAGS_HINT = "administrator, monitoring, policymaker or management; several with commas; none to keep the user out of these pages";

function UserForm({ name, tags, done }) {
  const submit = async ({ elements }) => {
    const user = name ?? elements.user.value;
    await call("PUT", at("users", user), { password: elements.password.value, tags: elements.tags.value });
    return `User ${user} is set.`;
  };
  return html`<${Form} label=${name ? "Change" : "Add"} submit=${submit} done=${done}><div class="fields">
    ${!name && html`<${Text} label="Name" name="user" required />`}
    <${Text} label="Password" name="password" type="password" autocomplete="new-password" hint=${name ? "has to be given again; empty for none" : "empty for none: then only a certificate will do"} />
    <${Text} label="Tags" name="tags" defaultValue=${tags ?? "management"} hint=${TAGS_HINT} /></div>
  <//>`;
}

export function UserPage({ of: [name] }) {
  const user = useResource(at("users", name));
  const rights = useResource(at("users", name, "permissions"));
  const topics = useResource(at("users", name, "topic-permissions"));
  const remove = async () => {
    await call("DELETE", at("users", name));
    go("users");
    return `User ${name} was deleted.`;
  };
  const right = (label) => ({ label, show: (each) => html`<code class="wrap">${each[label] || "(nothing)"}</code>` });
  const rightColumns = [
    { label: "Vhost", show: (each) => each.vhost }, right("configure"), right("write"), right("read"),
    { label: "", show: (each) => html`<${Confirmed} kind="link danger" label="Take away" ariaLabel=${`Take away rights in ${each.vhost}`} question=${`Take away all rights of ${name} in ${each.vhost}?`} act=${async () => { await call("DELETE", at("permissions", each.vhost, name)); rights.reload(); return "Taken away."; }} />` },
  ];
  const topicColumns = [
    { label: "Vhost", show: (each) => each.vhost }, { label: "Exchange", show: (each) => each.exchange }, right("write"), right("read"),
    { label: "", show: (each) => html`<${Confirmed} kind="link danger" label="Take away" ariaLabel=${`Take away the topic rights for ${each.exchange}`} question=${`${name} may then use all routing keys of ${each.exchange}.`} act=${async () => { await call("DELETE", at("topic-permissions", each.vhost, name, each.exchange)); topics.reload(); return "Taken away."; }} />` },
  ];
  const setRights = async ({ elements }) => {
    await call("PUT", at("permissions", elements.vhost.value, name), { configure: elements.configure.value, write: elements.write.value, read: elements.read.value });
    rights.reload();
    return "Set.";
  };
  const setTopics = async ({ elements }) => {
    await call("PUT", at("topic-permissions", elements.vhost.value, name), { exchange: elements.exchange.value, write: elements.write.value, read: elements.read.value });
    topics.reload();
    return "Set.";
  };
  return html`<p class="crumbs"><a href="#/users">Users</a></p><div class="row spread"><h1>${name}</h1><div class="row">
      <${Opens} label="Change">${(close) => html`<${UserForm} name=${name} tags=${user.data?.tags.join(", ")} done=${() => { close(); user.reload(); }} />`}<//>
      <${Confirmed} label="Delete" question=${`Delete the user ${name}, with all rights?`} act=${remove} /></div></div>
    <${Failure} error=${user.error} />
    ${user.data && html`<p>${user.data.tags.map((tag) => html`<${Tag} kind="on">${tag}<//> `)}${!user.data.tags.length && html`<span class="quiet">no tags: may not come here</span>`}</p>
    <section class="panel"><h2>Rights</h2><p class="quiet small">Regular expressions for the names of exchanges and queues; an empty one fits nothing.</p><${Table} caption="Rights" rows=${rights.data ?? []} columns=${rightColumns} empty="No rights in any vhost." />
      <h3>Set rights</h3><${Form} label="Set rights" submit=${setRights}><div class="fields"><${VhostChoice} /><${Text} label="Configure" name="configure" defaultValue=".*" /><${Text} label="Write" name="write" defaultValue=".*" /><${Text} label="Read" name="read" defaultValue=".*" /></div><//></section>
    <section class="panel"><h2>Routing keys of topic exchanges</h2><${Table} caption="Topic rights" rows=${topics.data ?? []} columns=${topicColumns} empty="All routing keys may be used." />
      <h3>Limit routing keys</h3><${Form} label="Set limits" submit=${setTopics}><div class="fields"><${VhostChoice} /><${Text} label="Exchange" name="exchange" required /><${Text} label="Write" name="write" defaultValue=".*" /><${Text} label="Read" name="read" defaultValue=".*" /></div><//></section>`}`;
}
