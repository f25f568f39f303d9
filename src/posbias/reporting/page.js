(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const show = (mark) => {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const middle = at.left + at.width / 2 - own.width / 2;
    const left = Math.max(8, Math.min(middle, document.documentElement.clientWidth - own.width - 8));
    const above = at.top - own.height - 6;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(above >= 0 ? above : at.top + 6) + window.scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const group of document.querySelectorAll(".marks")) {
    const marks = [...group.children];
    // Listen on the figure: a group within the SVG that has listeners could take the focus itself.
    const figure = group.closest("figure");
    for (const mark of marks) {
      mark.setAttribute("role", "img");
      mark.setAttribute("tabindex", mark === marks[0] ? "0" : "-1");
      // The script shows the text from here on, so the browser must not show its own tooltip too.
      const title = mark.querySelector("title");
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    const go = (to) => {
      for (const mark of marks) mark.setAttribute("tabindex", mark === to ? "0" : "-1");
      to.focus();
    };
    const own = (listen) => (event) => { if (marks.includes(event.target)) listen(event); };
    figure.addEventListener("pointerover", own((event) => show(event.target)));
    figure.addEventListener("pointerout", own(() => {
      if (marks.includes(document.activeElement)) show(document.activeElement); else hide();
    }));
    figure.addEventListener("click", own((event) => go(event.target)));
    figure.addEventListener("focusin", own((event) => show(event.target)));
    figure.addEventListener("focusout", own(hide));
    figure.addEventListener("keydown", own((event) => {
      const here = marks.indexOf(event.target), last = marks.length - 1;
      const to = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: last };
      if (event.key === "Escape") hide();
      if (!(event.key in to)) return;
      event.preventDefault();
      go(marks[Math.max(0, Math.min(to[event.key], last))]);
    }));
  }
  if (navigator.clipboard) {
    for (const head of document.querySelectorAll(".copied")) {
      const button = document.createElement("button");
      button.textContent = "Copy";
      button.setAttribute("aria-label", `Copy: ${head.textContent.trim()}`);
      button.addEventListener("click", () => {
        const text = head.nextElementSibling.textContent;
        navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => {});
      });
      head.append(button);
    }
  }
  // Print the folded parts too.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
})();
