// Browsers start no worker from a file. Where the site is a folder of files, a hidden frame takes its place, so that
// search works there, too.
if (location.protocol === "file:") {
  // As from a worker, which is given copies: it changes what it is given.
  const copy = data => new MessageEvent("message", { data: structuredClone(data) })
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<body></body>")
      inner.document.close()
      inner.postMessage = data => this.onmessage?.(copy(data))
      const script = inner.document.createElement("script")
      script.src = new URL(url, location.href)
      this.ready = new Promise(resolve => (script.onload = () => resolve(inner)))
      script.onerror = () => this.onerror?.(new ErrorEvent("error"))
      inner.document.body.append(script)
    }

    postMessage(data) {
      this.ready.then(inner => inner.onmessage?.(copy(data)))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
