// Addresses name everything that is seen. Links are ordinary links; clicks on them do not load the page again.
import { signal } from "@preact/signals";

export interface Address {
  path: string;
  query: URLSearchParams;
}

function current(): Address {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const address = signal<Address>(current());

export function go(to: string, replace = false): void {
  if (to !== location.pathname + location.search) {
    if (replace) history.replaceState(null, "", to);
    else history.pushState(null, "", to);
  }
  const changed = address.value.path !== location.pathname;
  address.value = current();
  if (changed) scrollTo(0, 0);
}

/** The address of this view with some query parameters changed; an empty value removes one. */
export function withQuery(changes: Record<string, string>): string {
  const query = new URLSearchParams(address.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  return address.value.path + (text ? `?${text}` : "");
}

export function startRouter(): void {
  addEventListener("popstate", () => (address.value = current()));
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const href = link.getAttribute("href") ?? "";
    if (link.target || link.hasAttribute("download") || !href.startsWith("/") || href.startsWith("/api")) return;
    event.preventDefault();
    go(href);
  });
}
