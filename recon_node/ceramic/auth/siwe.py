"""The text that a wallet shows and signs: "Sign in with Ethereum", or Solana, or another chain.

A CACAO (CAIP-74) holds the fields; what was signed is this text, made of them (EIP-4361, and
CAIP-122 for other chains). Blank lines and the order of lines count. Where the specification and
the wallets' library disagree (a message without a statement), the library is followed, @didtools/
cacao: it is what has signed the capabilities that there are.

No field may hold a line break: a text could otherwise be read as two different sets of fields, and
a signature given for one of them be used for the other.
"""

from recon_node.ceramic.auth.cacao import Cacao
from recon_node.ceramic.auth.did import Account


def message(cacao: Cacao, chain: str, account: Account, *, legacy: bool = False) -> str:
    """The text that the account's owner signed; `chain` as wallets name it, "Ethereum".

    `legacy` is the layout before 2022-09-20: the chain's id stands after the request's.
    """
    chain_id = f"Chain ID: {account.reference}"
    lines = [f"URI: {cacao.audience}", f"Version: {cacao.version}"]
    if not legacy:
        lines.append(chain_id)
    lines += [f"Nonce: {cacao.nonce}", f"Issued At: {cacao.issued_at}"]
    if cacao.expiration is not None:
        lines.append(f"Expiration Time: {cacao.expiration}")
    if cacao.not_before is not None:
        lines.append(f"Not Before: {cacao.not_before}")
    if cacao.request_id:
        lines.append(f"Request ID: {cacao.request_id}")
    if legacy:
        lines.append(chain_id)
    if cacao.resources:
        lines += ["Resources:", *(f"- {resource}" for resource in cacao.resources)]
    head = f"{cacao.domain} wants you to sign in with your {chain} account:\n{account.address}\n\n"
    if cacao.statement:
        head += f"{cacao.statement}\n\n"
    return head + "\n".join(lines)
