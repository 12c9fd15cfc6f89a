import { html } from "../html.js";
import { at, call, get } from "../api.js";
import { useVhosts } from "../vhost-choice.js";
import { Choice, Field, Form } from "../parts.js";


export function Definitions() {
  const vhosts = useVhosts();
  const options = (whole) => [{ value: "", label: whole }, ...vhosts.map((name) => ({ value: name, label: `Virtual host ${name}` }))];
  const address = (vhost) => (vhost ? at("definitions", vhost) : "/api/definitions");
  const download = async ({ elements }) => {
    const definitions = await get(address(elements.vhost.value));
    const file = new Blob([JSON.stringify(definitions, null, 2)], { type: "application/json" });
    const anchor = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: "definitions.json" });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
    return "Definitions exported.";
  };
  const upload = async (form) => {
    const [file] = form.elements.file.files;
    if (!file) throw new Error("Choose a file first.");
    const text = await file.text();
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Error(`${file.name} is not valid JSON: ${error.message}`);
    }
    await call("POST", address(form.elements.into.value), text);
    form.reset();
    return `${file.name} imported.`;
  };
  return html`<h1>Definitions</h1><p class="quiet">Virtual hosts, users, permissions, policies, exchanges, queues and bindings in one JSON file, in RabbitMQ's format. Messages are not included.</p>
    <div class="grid">
      <section class="panel"><h2>Export</h2><p class="small">Durable objects are exported, transient ones are not. Passwords are exported as hashes.</p>
        <${Form} label="Export" submit=${download}><${Choice} label="Scope" name="vhost" options=${options("All virtual hosts, users and policies")} /><//></section>
      <section class="panel"><h2>Import</h2><p class="small">Objects in the file are added; nothing is deleted. A file with an error or a conflict changes nothing.</p>
        <${Form} label="Import" submit=${upload}><${Field} label="File"><input type="file" name="file" accept=".json,application/json" /><//><${Choice} label="Import into" name="into" options=${options("The virtual hosts named in the file")} /><//></section>
    </div>`;
}
