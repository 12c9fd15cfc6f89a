import { html } from "../html.js";
import { at, call } from "../api.js";
import { go, link, useResource } from "../state.js";
import { ArgumentList, ConfirmButton, Facts, Failure, Listing, Table, Tag } from "../parts.js";
import { bytes, count, moment, rateOf } from "../format.js";
import { channelColumns } from "./channels.js";

const RECONNECTS = "The client is notified; most clients reconnect.";

const close = (name) => async () => {
  await call("DELETE", at("connections", name));
  return `Connection ${name} closed.`;
};

export function Connections() {
  const columns = (reload) => [
    { label: "Name", sort: "name", show: (each) => html`<a href=${link("connections", each.name)}>${each.name}</a>${each.user_provided_name && html`<div class="quiet small">${each.user_provided_name}</div>`}` },
    { label: "User", sort: "user", show: (each) => each.user },
    { label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
    { label: "State", sort: "state", show: (each) => html`<${Tag} kind=${each.state === "running" ? "on" : "bad"}>${each.state}<//>` },
    { label: "TLS", sort: "ssl", show: (each) => (each.ssl ? "yes" : "no") },
    { label: "Channels", sort: "channels", number: true, show: (each) => count(each.channels) },
    { label: "Received", number: true, sort: "recv_oct_details.rate", show: (each) => `${bytes(rateOf(each, "recv_oct"))}/s` },
    { label: "Sent", number: true, sort: "send_oct_details.rate", show: (each) => `${bytes(rateOf(each, "send_oct"))}/s` },
    { label: "", show: (each) => html`<${ConfirmButton} kind="link danger" label="Close" ariaLabel=${`Close ${each.name}`} question=${`Close the connection ${each.name}? ${RECONNECTS}`} act=${async () => { const message = await close(each.name)(); reload(); return message; }} />` },
  ];
  return html`<h1>Connections</h1><${Listing} caption="connections" url="/api/connections" columns=${columns} empty="No connections." />`;
}

/** The client's properties; capabilities that it has are shown as tags. */
function clientFacts({ capabilities = {}, connection_name: _, ...properties }) {
  const supported = Object.keys(capabilities).filter((name) => capabilities[name]);
  return {
    "client properties": Object.keys(properties).length ? html`<${ArgumentList} value=${properties} />` : null,
    "client capabilities": supported.length ? supported.map((name) => html`<${Tag}>${name}<//> `) : null,
  };
}

export function Connection({ of: [name] }) {
  const { data, error } = useResource(at("connections", name));
  const channels = useResource(at("connections", name, "channels"));
  return html`<p class="crumbs"><a href="#/connections">Connections</a></p><div class="row spread"><h1>${name}</h1>
      ${data && html`<${ConfirmButton} label="Close connection" question=${`Close this connection? ${RECONNECTS}`} act=${async () => { const message = await close(name)(); go("connections"); return message; }} />`}</div>
    <${Failure} error=${error} />
    ${data && html`<section class="panel"><${Facts} of=${{
      user: data.user, "virtual host": data.vhost, state: data.state, "connection name": data.user_provided_name, "connected since": moment(data.connected_at), "SASL mechanism": data.auth_mechanism,
      TLS: data.ssl ? `${data.ssl_protocol}, ${data.ssl_cipher}` : "no", heartbeat: data.timeout ? `${data.timeout} s` : "off", "maximum frame size": bytes(data.frame_max), "maximum channels": count(data.channel_max),
      received: `${bytes(data.recv_oct)}, ${bytes(rateOf(data, "recv_oct"))}/s`, sent: `${bytes(data.send_oct)}, ${bytes(rateOf(data, "send_oct"))}/s`,
      ...clientFacts(data.client_properties),
    }} /></section><h2>Channels</h2><${Table} caption="Channels of this connection" rows=${channels.data ?? []} columns=${channelColumns} empty="No channels." />`}`;
}

