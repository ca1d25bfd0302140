// A command is copied at a click, and the page is read anew when you come back to it.
window.name = "course_home"; // a lesson links back to this very tab

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(button.dataset.copy).then(
    () => say(button, "copied"),
    () => say(button, "select it"),
  );
});

function say(button, text) {
  button.textContent = text;
  setTimeout(() => (button.textContent = "copy"), 1500);
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") location.reload();
});
