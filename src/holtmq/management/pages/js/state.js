// State shared by the pages: the current place, resources that refresh, and notifications.

import { useCallback, useEffect, useRef, useState } from "./html.js";
import { get } from "./api.js";

export const REFRESH_MS = 5000;

/** The parsed fragment of the URL: "#/queues/%2F/a" becomes ["queues", "/", "a"]. */
export function currentPlace() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const query = new URLSearchParams(search ?? "");
  try {
    return { segments: path.split("/").filter(Boolean).map(decodeURIComponent), query };
  } catch {
    return { segments: [path], query }; // an invalid percent sign: no page has this name
  }
}

export function link(...segments) {
  return "#/" + segments.map(encodeURIComponent).join("/");
}

export function go(...segments) {
  location.hash = link(...segments);
}

/** A resource that is reloaded every few seconds while the tab is visible. */
export function useResource(url, everyMs = REFRESH_MS) {
  const [state, setState] = useState({ data: null, error: null, url: null });
  const wanted = useRef(url);
  wanted.current = url;
  const load = useCallback(async () => {
    if (!url) return;
    try {
      const data = await get(url);
      if (wanted.current === url) setState({ data, error: null, url });
    } catch (error) {
      if (wanted.current === url) setState((old) => ({ data: old.url === url ? old.data : null, error, url }));
    }
  }, [url]);
  useEffect(() => {
    load();
    if (!everyMs) return undefined;
    const timer = setInterval(() => document.hidden || load(), everyMs);
    return () => clearInterval(timer);
  }, [load, everyMs]);
  return { data: state.url === url ? state.data : null, error: state.url === url ? state.error : null, reload: load };
}

let showToast = () => {};

export function onToast(show) {
  showToast = show;
}

/** Show a notification. */
export function notify(text, kind = "") {
  showToast({ text, kind });
}

export function useDebounced(value, delayMs) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), delayMs);
    return () => clearTimeout(timer);
  }, [value, delayMs]);
  return settled;
}
