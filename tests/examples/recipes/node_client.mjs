// A Node program that meets its run over MCP: `node node_client.mjs URL TOKEN`, as `bundle-router serve` prints them.
const [url, token] = process.argv.slice(2);
let id = 0;

async function ask(method, params) {
  const meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'recipe', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const answer = await fetch(url, {
    method: 'POST',
    headers: {
      Authorization: `Bearer ${token}`,
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': '2026-07-28',
      'Mcp-Method': method,
      ...(params.name ? { 'Mcp-Name': params.name } : {}),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: ++id, method, params: { ...params, _meta: meta } }),
  });
  const text = await answer.text();
  const line = text.startsWith('{') ? text : text.split('\n').find((each) => each.startsWith('data:')).slice(5);
  return JSON.parse(line).result;
}

const { tools } = await ask('tools/list', {});
console.log(tools.map((tool) => tool.name).join(' '));
const result = await ask('tools/call', { name: 'tickets__get_ticket', arguments: { number: 7 } });
console.log(result.content[0].text);
