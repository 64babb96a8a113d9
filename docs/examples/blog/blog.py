"""A small blog on Ceramic: profiles, posts, comments of anybody, and a merge.

    python blog.py my.key      # writes a profile, a post and comments

Its models are deployed once, by deploy.py; here they are known by their ids, which are in
blog_models.py. The address of the node is that of RECON_NODE_URL. docs/how-to/blog.md goes through
the code.
"""

import os
import sys
from collections.abc import Iterator

import blog_models as models

from recon_node.client import Ceramic, Document, Key, StreamId


class Blog:
    """The blog of the client's key.

    Args:
        ceramic: a client with a key.
    """

    def __init__(self, ceramic: Ceramic) -> None:
        self._ceramic = ceramic

    def introduce(self, name: str, about: str) -> Document:
        """Write the author's profile. An account has one, so this also changes it."""
        profile: models.Profile = {"name": name, "about": about}
        return self._ceramic.create(models.PROFILE_MODEL, profile)

    def publish(self, title: str, text: str, profile: Document) -> Document:
        """Write a post, on which anybody can comment."""
        post: models.Post = {
            "title": title,
            "text": text,
            "tags": ["news"],
            "profile": str(profile.id),
            "tangles": {"comments": {"root": None, "previous": None}},
        }
        return self._ceramic.create(models.POST_MODEL, post)

    def comment(self, post: StreamId, text: str, key: Key) -> Document:
        """Comment on a post: the comment follows those that the node knows."""
        content = {"text": text, "post": str(post)}  # `reply` adds the member `tangles`
        return self._ceramic.reply(post, "comments", content, model=models.COMMENT_MODEL, key=key)

    def comments(self, post: StreamId) -> Iterator[models.Comment]:
        """Return the comments on a post, in an order on which all nodes agree."""
        _post, *comments = self._ceramic.tangle(post, "comments").messages
        return (message.content for message in comments)

    def edit_twice(self, post: Document) -> models.Post:
        """Edit a post on two devices that do not know of each other, and merge the versions."""
        content: models.Post = post.content
        on_laptop: models.Post = {**content, "title": content["title"] + "!"}
        on_phone: models.Post = {**content, "tags": ["news", "opinion"]}
        self._ceramic.update(post.id, on_laptop, at=post.event)
        self._ceramic.update(post.id, on_phone, at=post.event)
        merged: models.Post = self._ceramic.merge(post.id).content
        return merged


def tour(ceramic: Ceramic) -> None:
    """Do everything once, and show what came of it."""
    blog = Blog(ceramic)
    profile = blog.introduce("Ada", "Notes on engines")
    post = blog.publish("The engine works", "It computes Bernoulli numbers.", profile)
    blog.comment(post.id, "How fast?", Key.generate())
    blog.comment(post.id, "One an hour.", Key.generate())
    merged = blog.edit_twice(post)
    print(merged["title"], merged.get("tags"))
    for comment in blog.comments(post.id):
        print("-", comment["text"])


if __name__ == "__main__":
    [key_file] = sys.argv[1:] or sys.exit("usage: blog.py KEY_FILE")
    url = os.environ.get("RECON_NODE_URL", "http://127.0.0.1:5101")
    with Ceramic(url, key=Key.load(key_file)) as client:
        tour(client)
