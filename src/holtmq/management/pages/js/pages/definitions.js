import { html } from "../html.js";
import { at, call, get } from "../api.js";
import { useVhosts } from "../vhosts.js";
import { Choice, Field, Form } from "../parts.js";

const EVERYTHING = "everything";

export function Definitions() {
  const vhosts = useVhosts();
  const options = [{ value: "", label: EVERYTHING }, ...vhosts.map((name) => ({ value: name, label: `vhost ${name}` }))];
  const address = (vhost) => (vhost ? at("definitions", vhost) : "/api/definitions");
  const download = async ({ elements }) => {
    const definitions = await get(address(elements.vhost.value));
    const file = new Blob([JSON.stringify(definitions, null, 2)], { type: "application/json" });
    const anchor = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: "definitions.json" });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
    return "The file is on its way.";
  };
  const upload = async (form) => {
    const [file] = form.elements.file.files;
    if (!file) throw new Error("Choose a file first.");
    const text = await file.text();
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Error(`${file.name} is no JSON: ${error.message}`);
    }
    await call("POST", address(form.elements.into.value), text);
    form.reset();
    return `${file.name} was taken in.`;
  };
  return html`<h1>Definitions</h1><p class="quiet">Vhosts, users, rights, policies, exchanges, queues and bindings in one file, as RabbitMQ exports and imports them. No messages.</p>
    <div class="grid">
      <section class="panel"><h2>Download</h2><${Form} label="Download" submit=${download}><${Choice} label="What" name="vhost" options=${options} /><//></section>
      <section class="panel"><h2>Upload</h2><p class="small">What the file names is added, nothing is removed. A file that cannot be used, or contradicts what is here, changes nothing.</p>
        <${Form} label="Upload" submit=${upload}><${Field} label="File"><input type="file" name="file" accept=".json,application/json" /><//><${Choice} label="Into" name="into" options=${options} /><//></section>
    </div>`;
}
