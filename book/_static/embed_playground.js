"use strict";
/* On a page of the built book, show the playground in place, above the plain link to it, which stays.
   Without this script (in Jupyter, on Colab, without JavaScript) the link is all there is. */
document.addEventListener("DOMContentLoaded", () => {
  const link = document.querySelector('article a[href$="_static/playground.html"], main a[href$="_static/playground.html"]');
  if (!link) return;

  const frame = document.createElement("iframe");
  frame.className = "playground";
  frame.title = "Attention playground: one query, a few keys";
  frame.src = link.href;
  (link.closest("p, ul, ol") || link).before(frame);

  // Messages work where the two pages may not read each other: opened as files, each counts as another origin.
  const tellTheme = () => {
    const theme = document.documentElement.dataset.theme;
    if (theme) frame.contentWindow.postMessage({ theme }, "*");
  };
  frame.addEventListener("load", tellTheme);
  new MutationObserver(tellTheme).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  window.addEventListener("message", (event) => {
    const height = event.data && event.data.playgroundHeight;
    if (event.source === frame.contentWindow && height > 0 && height < 10000) frame.style.height = `${height}px`;
  });
});
