const tip = document.getElementById("tip");
for (const mark of document.querySelectorAll("[data-title]")) {
  mark.addEventListener("mousemove", (event) => {
    tip.textContent = mark.dataset.title;
    tip.hidden = false;
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 10) + "px";
    tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 10) + "px";
  });
  mark.addEventListener("mouseleave", () => { tip.hidden = true; });
}
// Stretches every time axis by the same factor; labels keep their size.
let factor = 1;
function stretch(by) {
  factor = Math.min(Math.max(factor * by, 1), 64);
  for (const svg of document.querySelectorAll("svg[data-scale]")) {
    const left = Number(svg.dataset.left), scale = Number(svg.dataset.scale) * factor;
    let end = 0;
    for (const group of svg.querySelectorAll("g[data-start]")) {
      const start = Number(group.dataset.start), stop = Number(group.dataset.stop);
      const rect = group.querySelector("rect"), label = group.querySelector("text");
      const width = Math.max((stop - start) * scale, 1);
      rect.setAttribute("x", left + start * scale);
      rect.setAttribute("width", width);
      if (label) label.setAttribute("x", left + start * scale + width / 2);
      end = Math.max(end, left + stop * scale);
    }
    for (const words of svg.querySelectorAll("text[data-at]")) words.setAttribute("x", left + Number(words.dataset.at) * scale);
    svg.setAttribute("width", end + 10);
  }
}
for (const button of document.querySelectorAll("button[data-stretch]")) {
  button.addEventListener("click", () => stretch(Number(button.dataset.stretch)));
}
