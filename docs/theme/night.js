/* Dark where the reader's system is, as the pictures are; the theme's own switch remembers instead. */
const night = matchMedia("(prefers-color-scheme: dark)");
const follow = () => (document.body.dataset.mdColorScheme = night.matches ? "slate" : "default");
night.addEventListener("change", follow);
follow();
