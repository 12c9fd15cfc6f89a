// Requests to the broker. Credentials are kept until the tab is closed and sent with every request; there are no cookies.

// Browsers resolve the segments "." and ".." even if they are encoded: request a path that does not exist, not another resource.
const UNSENDABLE = "/api/browsers-cannot-send-this-name";
const STORED = "holtmq.login";

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const login = {
  get: () => sessionStorage.getItem(STORED),
  set(user, password) {
    const bytes = new TextEncoder().encode(`${user}:${password}`);
    sessionStorage.setItem(STORED, btoa(String.fromCharCode(...bytes)));
  },
  forget: () => sessionStorage.removeItem(STORED),
};

/** The path of a resource. A segment may contain any character, including slashes. */
export function at(...segments) {
  if (segments.some((segment) => segment === "." || segment === "..")) return UNSENDABLE;
  return "/api/" + segments.map(encodeURIComponent).join("/");
}

/** The name of an exchange in a path. The default exchange, whose name is empty, has a special one. */
export const exchangeName = (name) => name || "amq.default";

export function query(url, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null && value !== false);
  return given.length ? `${url}?${new URLSearchParams(given)}` : url;
}

export async function call(method, url, body) {
  const headers = { authorization: `Basic ${login.get() ?? ""}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method,
      headers,
      credentials: "omit",
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "The broker does not respond. Check that it is running.");
  }
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  let reason = text || response.statusText;
  try {
    reason = JSON.parse(text).reason ?? reason;
  } catch {
    // not JSON: show the text as it is
  }
  throw new ApiError(response.status, reason);
}

export const get = (url) => call("GET", url);
