// The virtual hosts that the user can access.

import { html } from "./html.js";
import { useResource } from "./state.js";
import { Choice } from "./parts.js";

let known = []; // so that a form that opens later has them at once

export function useVhosts() {
  const { data } = useResource("/api/vhosts?columns=name", 0);
  known = data?.map((each) => each.name) ?? known;
  return known;
}

/** A choice that cannot be submitted before the virtual hosts are loaded. */
export function VhostChoice({ value, onChange, name = "vhost" }) {
  const vhosts = useVhosts();
  return html`<${Choice} label="Virtual host" name=${name} options=${vhosts} value=${value} required onChange=${(event) => onChange?.(event.target.value)} />`;
}
