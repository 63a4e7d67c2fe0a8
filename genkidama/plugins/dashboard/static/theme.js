// Light or dark, before anything is painted: what was chosen here, else what the system prefers.
"use strict";

(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");

  // A browser that keeps nothing throws.
  function chosen() {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  }

  function show() {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      const other = theme === "dark" ? "light" : "dark";
      button.setAttribute("aria-label", `Switch to the ${other} colours`);
      button.title = button.getAttribute("aria-label");
    }
  }

  function turn() {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      if (theme === (system.matches ? "dark" : "light")) localStorage.removeItem("theme");
      else localStorage.setItem("theme", theme);
    } catch {
      document.documentElement.dataset.theme = theme;
      return;
    }
    show();
  }

  show();
  system.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", turn);
  });
})();
