// What the theme leaves out for keyboards and screen readers.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("pre, .table-wrapper")) place.tabIndex = 0;
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
});

// The commands of a console block, without prompts and output; a line that ends with \ goes on.
function commandsOf(text) {
  const commands = [];
  let goesOn = false;
  for (const line of text.split("\n")) {
    if (!goesOn && !line.startsWith("$ ")) continue;
    commands.push(goesOn ? line : line.slice(2));
    goesOn = line.endsWith("\\");
  }
  return commands.join("\n");
}

// A button in each block, which copies its commands alone; a block without a prompt is copied whole.
function addCopyButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    const text = block.querySelector("pre").textContent;
    await navigator.clipboard.writeText(commandsOf(text) || text.trimEnd());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.prepend(button);
}

document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return; // a page that was not loaded over https, localhost or as a file
  for (const block of document.querySelectorAll(".highlight")) addCopyButton(block);
});

// The text selected in a block, with the prompt of a line whose beginning was left out.
function selectedIn(block, range) {
  const before = document.createRange();
  before.setStart(block, 0);
  before.setEnd(range.startContainer, range.startOffset);
  const line = before.toString().split("\n").pop();
  const prompt = line.startsWith("$ ") ? "$ " : line === "$" ? "$" : "";
  return prompt + range.toString();
}

document.addEventListener("copy", (event) => {
  const selection = document.getSelection();
  if (!selection.rangeCount) return;
  const range = selection.getRangeAt(0);
  const place = range.commonAncestorContainer;
  const block = (place.closest ? place : place.parentElement).closest(".highlight-console pre");
  const commands = block && commandsOf(selectedIn(block, range));
  if (!commands) return; // a piece of output alone is copied as it is
  event.clipboardData.setData("text/plain", commands);
  event.preventDefault();
});
