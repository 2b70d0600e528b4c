// `node fetch.mjs SPEC`: Node's own fetch, its stream read by a reader. SPEC is JSON: url, headers, body, and
// `leave` (abort when so many bytes have come, say so, and stay until stdin ends) or `twice` (ask again on the way).
const spec = JSON.parse(process.argv[2]);
const leaving = new AbortController();

async function ask() {
  const answer = await fetch(spec.url, {
    method: "POST", headers: spec.headers, body: spec.body, signal: leaving.signal,
  });
  let came = 0;
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return answer.status;
    process.stdout.write(value);
    came += value.length;
    if (spec.leave && came >= spec.leave) leaving.abort();
  }
}

try {
  const status = await ask();
  if (spec.twice) await ask();
  process.exitCode = status === 200 ? 0 : 22;
} catch (error) {
  process.stderr.write(`${error.name}: ${error.message}\n`);
  if (error.name !== "AbortError") process.exit(1);
  process.stdin.resume();
}
