// Components shared by the pages.

import { html, useEffect, useRef, useState } from "./html.js";
import { call, query } from "./api.js";
import { notify, useDebounced, useResource } from "./state.js";
import { count } from "./format.js";

const PAGE_SIZE = 50;

export const Failure = ({ error }) => (error ? html`<p class="note error" role="alert">${error.message}</p>` : null);

export const Tag = ({ kind = "", children }) => html`<span class=${`tag ${kind}`}>${children}</span>`;

export const Figure = ({ label, value, href }) => (href ? html`<a class="figure" href=${href}><b>${value}</b><span>${label}</span></a>` : html`<div class="figure"><b>${value}</b><span>${label}</span></div>`);

export function Facts({ of }) {
  const rows = Object.entries(of).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="facts">${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

/** The identity of a row. An open dialog stays with its row when the list changes. */
const rowKey = (row) => [row.vhost, row.user, row.source, row.destination, row.properties_key, row.name, row.exchange, row.queue?.name, row.consumer_tag, row.channel_details?.name, row.protocol, row.port].join("\u0000");

/** A table. Columns are {label, show, number, sort, has}; the first one is the header of its row. A column with `has` is shown only if a row has a value for it. */
export function Table({ caption, columns: possible, rows, sort, onSort, empty = "No entries." }) {
  if (!rows.length) return html`<div class="empty">${empty}</div>`;
  const columns = possible.filter((column) => !column.has || rows.some(column.has));
  const heading = (column) => {
    if (!column.label) return html`<span class="visually-hidden">Actions</span>`;
    if (!onSort || !column.sort) return column.label;
    const mark = sort.by === column.sort ? (sort.reverse ? " ▼" : " ▲") : "";
    return html`<button type="button" onClick=${() => onSort(column.sort)}>${column.label}${mark}</button>`;
  };
  const order = (column) => (sort && sort.by === column.sort && column.sort ? (sort.reverse ? "descending" : "ascending") : undefined);
  const cell = (column, row, place) =>
    place === 0
      ? html`<th scope="row">${column.show(row)}</th>`
      : html`<td class=${column.number ? "number" : ""}>${column.show(row)}</td>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="visually-hidden">${caption}</caption>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.number ? "number" : ""} aria-sort=${order(column)}>${heading(column)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${rowKey(row)}>${columns.map((column, place) => cell(column, row, place))}</tr>`)}</tbody>
    </table>
  </div>`;
}

/** A list that the broker filters, sorts and paginates. */
export function Listing({ caption, url, columns, empty, initialSort = "name", parameters = {}, version = 0, actions, filters }) {
  const [name, setName] = useState("");
  const [isRegex, setIsRegex] = useState(false);
  const [sort, setSort] = useState({ by: initialSort, reverse: false });
  const [page, setPage] = useState(1);
  const settled = useDebounced(name, 250);
  useEffect(() => setPage(1), [settled, isRegex, url, JSON.stringify(parameters)]);
  const address = query(url, {
    ...parameters, page, page_size: PAGE_SIZE, name: settled, use_regex: isRegex, sort: sort.by, sort_reverse: sort.reverse, pagination: true,
  });
  const { data, error, reload } = useResource(address);
  useEffect(() => void (version && reload()), [version]);
  useEffect(() => void (error && page > 1 && /out of range/.test(error.message) && setPage(1)), [error]);
  const onSort = (by) => setSort((old) => ({ by, reverse: old.by === by ? !old.reverse : false }));
  const last = useRef(null);
  if (data) last.current = data;
  const shown = data ?? (error ? null : last.current);
  return html`<section>
    <div class="row spread" style=${{ marginBottom: ".6rem" }}>
      <div class="row" role="search">
        <label class="row"><span class="quiet">Filter</span><input type="search" value=${name} onInput=${(event) => setName(event.target.value)} aria-label=${`Filter ${caption} by name`} /></label>
        <label class="check small"><input type="checkbox" checked=${isRegex} onChange=${(event) => setIsRegex(event.target.checked)} /> Regular expression</label>
        ${filters}
        <span class="quiet small" role="status">${shown ? `${count(shown.filtered_count)} of ${count(shown.total_count)}` : ""}</span>
      </div>
      <div class="row">${actions}</div>
    </div>
    <${Failure} error=${error} />
    ${shown && html`<${Table} caption=${caption} columns=${columns(reload)} rows=${shown.items} sort=${sort} onSort=${onSort} empty=${settled ? "No matches." : empty} />`}
    ${shown && shown.page_count > 1 && html`<nav class="row" aria-label=${`Pages of ${caption}`} style=${{ marginTop: ".6rem" }}>
      <button disabled=${page <= 1} onClick=${() => setPage(page - 1)}>Previous</button>
      <span>Page ${shown.page} of ${shown.page_count}</span>
      <button disabled=${page >= shown.page_count} onClick=${() => setPage(page + 1)}>Next</button>
    </nav>`}
  </section>`;
}

/** A modal dialog. */
export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current.showModal();
    return () => opener?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${onClose} onCancel=${onClose}>
    <div class="row spread"><h2 id="dialog-title">${title}</h2><button type="button" class="link" onClick=${onClose}>Close</button></div>
    ${children}
  </dialog>`;
}

/** A button that opens a dialog. `children` is called with a function that closes it. */
export function DialogButton({ label, title = label, kind = "", children }) {
  const [isOpen, setIsOpen] = useState(false);
  const close = () => setIsOpen(false);
  return html`<button type="button" class=${kind} onClick=${() => setIsOpen(true)}>${label}</button>
    ${isOpen && html`<${Dialog} title=${title} onClose=${close}>${children(close)}<//>`}`;
}

/** A form. It shows an error beside its button. */
export function Form({ submit, label, done, children, kind = "primary" }) {
  const [error, setError] = useState(null);
  const [isBusy, setIsBusy] = useState(false);
  const onSubmit = async (event) => {
    event.preventDefault();
    setIsBusy(true);
    setError(null);
    try {
      const message = await submit(event.target);
      if (message) notify(message);
      done?.();
    } catch (failure) {
      setError(failure);
    }
    setIsBusy(false);
  };
  return html`<form class="form" onSubmit=${onSubmit}>${children}<${Failure} error=${error} /><div class="row end"><button class=${kind} disabled=${isBusy}>${label}</button></div></form>`;
}

/** A button for an action that cannot be undone. It asks for confirmation. */
export function ConfirmButton({ label, question, act, kind = "danger", ariaLabel }) {
  const [isOpen, setIsOpen] = useState(false);
  const close = () => setIsOpen(false);
  return html`<button type="button" class=${kind} aria-label=${ariaLabel} onClick=${() => setIsOpen(true)}>${label}</button>
    ${isOpen && html`<${Dialog} title=${label} onClose=${close}><${Form} label=${label} kind="danger" submit=${act} done=${close}><p>${question}</p><//><//>`}`;
}

export const Field = ({ label, hint, children }) => html`<div><label class="field"><span>${label}</span>${children}</label>${hint && html`<small class="quiet">${hint}</small>`}</div>`;

export const Text = ({ label, hint, ...rest }) => html`<${Field} label=${label} hint=${hint}><input autocomplete="off" spellcheck="false" ...${rest} /><//>`;

export const Check = ({ label, ...rest }) => html`<label class="check"><input type="checkbox" ...${rest} /> ${label}</label>`;

/** A drop-down list. It needs aria-label, because the text of the label element would include all options. */
export const Choice = ({ label, options, ...rest }) =>
  html`<${Field} label=${label}><select aria-label=${label} ...${rest}>${options.map((option) => html`<option value=${option.value ?? option}>${option.label ?? option}</option>`)}</select><//>`;

const READERS = {
  text: (value) => value,
  number(value) {
    const read = Number(value);
    if (value.trim() === "" || !Number.isFinite(read)) throw new Error(`expected a number, got "${value}"`);
    return read;
  },
  boolean(value) {
    if (value !== "true" && value !== "false") throw new Error(`expected true or false, got "${value}"`);
    return value === "true";
  },
  JSON: (value) => JSON.parse(value),
  null: () => null,
};

/** An editor for a table of names with typed values. */
export function Arguments({ legend = "Arguments", noun = "argument", suggestions = [], value, onChange }) {
  const id = useRef(`names-${Math.random().toString(36).slice(2)}`).current;
  const change = (place, part) => onChange(value.map((row, at) => (at === place ? { ...row, ...part } : row)));
  return html`<fieldset><legend>${legend}</legend>
    <datalist id=${id}>${suggestions.map((name) => html`<option value=${name}></option>`)}</datalist>
    ${value.map((row, place) => html`<div class="argument">
      <input aria-label=${`${legend} ${place + 1}: name`} placeholder="name" list=${id} value=${row.name} onInput=${(event) => change(place, { name: event.target.value })} />
      <select aria-label=${`${legend} ${place + 1}: type`} value=${row.type} onChange=${(event) => change(place, { type: event.target.value })}>${Object.keys(READERS).map((type) => html`<option value=${type}>${type}</option>`)}</select>
      <input aria-label=${`${legend} ${place + 1}: value`} placeholder="value" value=${row.text} disabled=${row.type === "null"} onInput=${(event) => change(place, { text: event.target.value })} />
      <button type="button" aria-label=${`Remove ${legend} ${place + 1}`} onClick=${() => onChange(value.filter((_, at) => at !== place))}>×</button>
    </div>`)}
    <button type="button" class="link" onClick=${() => onChange([...value, { name: "", type: "text", text: "" }])}>Add ${noun}</button>
  </fieldset>`;
}

export function readArguments(rows) {
  const table = {};
  for (const { name, type, text } of rows) {
    if (!name) continue;
    try {
      table[name] = READERS[type](text);
    } catch (error) {
      throw new Error(`${name}: ${error.message}`);
    }
  }
  return table;
}

export const ArgumentList = ({ value }) =>
  Object.keys(value ?? {}).length ? html`<code class="wrap">${Object.entries(value).map(([name, each]) => `${name}=${JSON.stringify(each)}`).join(", ")}</code>` : null;

export { call };
