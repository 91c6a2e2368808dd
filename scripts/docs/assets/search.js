// Puts Pagefind's search box above the text of every page. The index lies in the site itself: nothing leaves it.
(() => {
  const script = document.currentScript;
  // This script is assets/search.js of its language: the default language lies at the site's root, others one below.
  const up = document.documentElement.lang.startsWith("en") ? "../" : "../../";
  const bundle = new URL(up + "pagefind/", script.src);
  const place = document.querySelector(".md-content__inner");
  if (!place) return;
  const box = document.createElement("div");
  box.className = "site-search";
  box.dataset.pagefindIgnore = "all";
  place.prepend(box);
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("pagefind-ui.css", bundle);
  document.head.append(style);
  const ui = document.createElement("script");
  ui.src = new URL("pagefind-ui.js", bundle);
  ui.onload = () => new PagefindUI({ element: box, bundlePath: bundle.pathname, showSubResults: true, showImages: false });
  document.head.append(ui);
})();
