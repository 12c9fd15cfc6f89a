// The shell around all pages: login, navigation and theme.

import { html, render, useEffect, useRef, useState } from "./html.js";
import { get, login } from "./api.js";
import { currentPlace, link, onToast } from "./state.js";
import { Login } from "./pages/login.js";
import { Overview } from "./pages/overview.js";
import { Connection, Connections } from "./pages/connections.js";
import { Channel, Channels, Consumers } from "./pages/channels.js";
import { ExchangePage, Exchanges } from "./pages/exchanges.js";
import { QueuePage, Queues } from "./pages/queues.js";
import { Bindings } from "./pages/bindings.js";
import { UserPage, Users } from "./pages/users.js";
import { Vhosts } from "./pages/vhosts.js";
import { Policies } from "./pages/policies.js";
import { Definitions } from "./pages/definitions.js";
import { TopologyPage } from "./pages/topology.js";
import { Explorer } from "./pages/explorer.js";
import { Pipeline } from "./pages/pipeline.js";

const PAGES = {
  overview: { title: "Overview", group: "Broker", list: Overview },
  connections: { title: "Connections", group: "Broker", list: Connections, one: Connection },
  channels: { title: "Channels", group: "Broker", list: Channels, one: Channel },
  consumers: { title: "Consumers", group: "Broker", list: Consumers },
  exchanges: { title: "Exchanges", group: "Routing", list: Exchanges, one: ExchangePage },
  queues: { title: "Queues", group: "Routing", list: Queues, one: QueuePage },
  bindings: { title: "Bindings", group: "Routing", list: Bindings },
  topology: { title: "Topology", group: "Routing", list: TopologyPage },
  explorer: { title: "Route explorer", group: "Routing", list: Explorer },
  pipeline: { title: "Pipeline", group: "Data", list: Pipeline },
  users: { title: "Users", group: "Admin", list: Users, one: UserPage, tags: ["administrator"] },
  vhosts: { title: "Virtual hosts", group: "Admin", list: Vhosts },
  policies: { title: "Policies", group: "Admin", list: Policies },
  definitions: { title: "Definitions", group: "Admin", list: Definitions, tags: ["administrator"] },
};
const THEME = "holtmq.theme";
const TOAST_MS = 6000;

function preferredTheme() {
  return localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

document.documentElement.dataset.theme = preferredTheme();

function Toasts() {
  const [toasts, setToasts] = useState([]);
  useEffect(() => {
    onToast((toast) => {
      const entry = { ...toast, key: Math.random() };
      setToasts((old) => [...old.slice(-3), entry]);
      setTimeout(() => setToasts((old) => old.filter((each) => each !== entry)), TOAST_MS);
    });
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.map((toast) => html`<div key=${toast.key} class=${`note ${toast.kind}`}>${toast.text}</div>`)}</div>`;
}

function Side({ name, user, onTheme, onLeave }) {
  const [isOpen, setIsOpen] = useState(false);
  useEffect(() => setIsOpen(false), [location.hash]);
  const allowed = Object.entries(PAGES).filter(([, page]) => !page.tags || page.tags.some((tag) => user.tags.includes(tag)));
  const groups = [...new Set(allowed.map(([, page]) => page.group))];
  return html`<header class=${`side ${isOpen ? "open" : ""}`}>
    <div class="bar"><a class="brand" href="#/overview"><img src="/logo.svg" alt="" />HoltMQ</a><button class="menu" aria-expanded=${isOpen} onClick=${() => setIsOpen(!isOpen)}>Menu</button></div>
    <nav aria-label="Pages">${groups.map((group) => html`<div class="group" id=${`group-${group}`}>${group}</div><ul aria-labelledby=${`group-${group}`}>
      ${allowed.filter(([, page]) => page.group === group).map(([key, page]) => html`<li><a href=${link(key)} aria-current=${key === name ? "page" : undefined}>${page.title}</a></li>`)}
    </ul>`)}</nav>
    <div class="foot"><span>${user.name} (${user.tags.join(", ")})</span><div class="row"><button onClick=${onTheme} title="Switch between the light and the dark theme">Theme</button><button onClick=${onLeave}>Log out</button></div><a href="/api/">HTTP API</a></div>
  </header>`;
}

function App() {
  const [user, setUser] = useState(null);
  const [isAsked, setIsAsked] = useState(false);
  const [, redraw] = useState(0);
  const main = useRef(null);
  const enter = async () => setUser(await get("/api/whoami"));
  useEffect(() => {
    const moved = () => {
      redraw((old) => old + 1);
      main.current?.focus({ preventScroll: true });
      scrollTo(0, 0);
    };
    addEventListener("hashchange", moved);
    if (login.get()) enter().catch(() => login.forget()).finally(() => setIsAsked(true));
    else setIsAsked(true);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const place = currentPlace();
  const [name = "overview", ...rest] = place.segments;
  const page = PAGES[name];
  useEffect(() => {
    document.title = `${rest.at(-1) ?? page?.title ?? "Not found"} · HoltMQ`;
  });
  if (!isAsked) return null;
  if (!user) return html`<${Login} enter=${enter} /><${Toasts} />`;
  const onTheme = () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem(THEME, theme);
    document.documentElement.dataset.theme = theme;
    redraw((old) => old + 1);
  };
  const onLeave = () => {
    login.forget();
    setUser(null);
  };
  const Shown = rest.length && page?.one ? page.one : page?.list;
  return html`<a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <div class="shell">
      <${Side} name=${name} user=${user} onTheme=${onTheme} onLeave=${onLeave} />
      <main id="content" tabindex="-1" ref=${main} key=${place.segments.join("/")}>
        ${Shown ? html`<${Shown} user=${user} of=${rest} query=${place.query} />` : html`<h1>Not found</h1><p>The page “${name}” does not exist.</p>`}
      </main>
    </div><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById("app"));
