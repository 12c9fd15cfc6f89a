import { html } from "../html.js";
import { at, call } from "../api.js";
import { go, link, useResource } from "../state.js";
import { ArgumentList, Confirmed, Facts, Failure, Listing, Table, Tag } from "../parts.js";
import { bytes, count, moment, rateOf } from "../format.js";
import { channelColumns } from "./channels.js";

const close = (name) => async () => {
  await call("DELETE", at("connections", name));
  return `Connection ${name} was closed.`;
};

export function Connections() {
  const columns = (reload) => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("connections", each.name)}>${each.name}</a>${each.user_provided_name && html`<div class="quiet small">${each.user_provided_name}</div>`}` },
    { label: "User", sort: "user", show: (each) => each.user },
    { label: "Vhost", sort: "vhost", show: (each) => each.vhost },
    { label: "State", sort: "state", show: (each) => html`<${Tag} kind=${each.state === "running" ? "on" : "bad"}>${each.state}<//>` },
    { label: "TLS", sort: "ssl", show: (each) => (each.ssl ? "yes" : "no") },
    { label: "Channels", sort: "channels", number: true, show: (each) => count(each.channels) },
    { label: "In", number: true, sort: "recv_oct_details.rate", show: (each) => `${bytes(rateOf(each, "recv_oct"))}/s` },
    { label: "Out", number: true, sort: "send_oct_details.rate", show: (each) => `${bytes(rateOf(each, "send_oct"))}/s` },
    { label: "", show: (each) => html`<${Confirmed} kind="link danger" label="Close" ariaLabel=${`Close ${each.name}`} question=${`Close the connection ${each.name}? Its client will be told, and most connect again.`} act=${async () => { const told = await close(each.name)(); reload(); return told; }} />` },
  ];
  return html`<h1>Connections</h1><${Listing} caption="connections" url="/api/connections" columns=${columns} empty="Nobody is connected." />`;
}

export function Connection({ of: [name] }) {
  const { data, error } = useResource(at("connections", name));
  const channels = useResource(at("connections", name, "channels"));
  return html`<p class="crumbs"><a href="#/connections">Connections</a></p><div class="row spread"><h1>${name}</h1>
      ${data && html`<${Confirmed} label="Close this connection" question="Its client will be told, and most connect again." act=${async () => { const told = await close(name)(); go("connections"); return told; }} />`}</div>
    <${Failure} error=${error} />
    ${data && html`<section class="panel"><${Facts} of=${{
      user: data.user, vhost: data.vhost, state: data.state, "client's name for it": data.user_provided_name, "connected since": moment(data.connected_at), login: data.auth_mechanism,
      TLS: data.ssl ? `${data.ssl_protocol}, ${data.ssl_cipher}` : "no", "heartbeat": `${data.timeout} s`, "largest frame": bytes(data.frame_max), "most channels": count(data.channel_max),
      received: `${bytes(data.recv_oct)}, ${bytes(rateOf(data, "recv_oct"))}/s`, sent: `${bytes(data.send_oct)}, ${bytes(rateOf(data, "send_oct"))}/s`,
      client: html`<${ArgumentList} value=${data.client_properties} />`,
    }} /></section><h2>Channels</h2><${Table} caption="Channels of this connection" rows=${channels.data ?? []} columns=${channelColumns} empty="No channels." />`}`;
}

