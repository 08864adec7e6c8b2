// What every page needs: copy buttons, and links that open a folded part. The table in board.js uses `make` and `copyTo`.
"use strict";
const make = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const copyTo = async (button, text, fallback) => {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    fallback();
  }
};
for (const box of document.querySelectorAll(".command")) {
  const code = box.querySelector("code");
  const button = make("button", { type: "button", className: "copy", textContent: "copy" });
  button.addEventListener("click", () => copyTo(button, code.textContent, () => getSelection().selectAllChildren(code)));
  box.append(button);
}
// A link to a folded part opens it.
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", unfold);
unfold();
