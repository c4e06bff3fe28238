// A crowd of clients with the retry agent of undici; prints the refusals of each as JSON.
//
// Usage: node turns.mjs URL CLIENTS FOLDER; the folder has undici among its modules.

import { createRequire } from "node:module";
import { resolve } from "node:path";
import process from "node:process";

const [url, clients, folder] = process.argv.slice(2);
const { Agent, RetryAgent, request } = createRequire(resolve(folder) + "/")("undici");

async function run() {
  let attempts = 0;
  const counting = new Agent({ connections: 1 }).compose((dispatch) => (options, handler) => {
    attempts += 1;
    return dispatch(options, handler);
  });
  const dispatcher = new RetryAgent(counting, { maxRetries: 30, statusCodes: [429] });
  const answer = await request(url, { dispatcher });
  await answer.body.dump();
  if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
  return attempts - 1;
}

console.log(JSON.stringify(await Promise.all(Array.from({ length: Number(clients) }, run))));
