"use strict";
// Click a heading: ascending, descending, as it was. Without this script the tables are simply not sortable.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const next = { none: "ascending", ascending: "descending", descending: "none" };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = next[heading.getAttribute("aria-sort")];
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const rows = order === "none" ? original : [...original].sort((a, b) => compare(a, b, column, sign));
      body.append(...rows);
    });
  });
}

// Numbers by value, text by its letters; cells without a number stay last in both orders.
function compare(a, b, column, sign) {
  const [x, y] = [a.cells[column], b.cells[column]];
  const [p, q] = ["key" in x.dataset, "key" in y.dataset];
  if (p && q) return sign * (Number(x.dataset.key) - Number(y.dataset.key));
  if (p !== q) return p ? -1 : 1;
  return sign * x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
}

// A table that is wider than the screen says so, and fades at the side where it continues.
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "Scroll this table sideways to see all columns →";
  box.before(hint);
  const look = () => {
    hint.hidden = box.scrollWidth <= box.clientWidth + 1;
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(box);
}

// Folded parts are printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
