// The virtual hosts that the user can access.

import { html } from "./html.js";
import { useResource } from "./state.js";
import { Choice } from "./parts.js";

export function useVhosts() {
  const { data } = useResource("/api/vhosts?columns=name", 0);
  return data?.map((each) => each.name) ?? [];
}

export function VhostChoice({ value, onChange, name = "vhost" }) {
  const vhosts = useVhosts();
  return html`<${Choice} label="Virtual host" name=${name} options=${vhosts} value=${value} onChange=${(event) => onChange?.(event.target.value)} />`;
}
