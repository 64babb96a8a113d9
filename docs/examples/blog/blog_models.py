"""Documents of Ceramic models; written by `recon-node model codegen`."""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

PROFILE_MODEL: Final = "kjzl6hvfrbw6c5k1dj12m0anr4pempp0cf6m17g28cv9hb4qd4kbu6vvzrfmcxm"
POST_MODEL: Final = "kjzl6hvfrbw6c7zb3paxbrwpw0o0ka4fcqjgyepm18i9onx0lxr0kaejup2paa1"
COMMENT_MODEL: Final = "kjzl6hvfrbw6c5j1960o4rvysm0mynpo6ezf50ldp573y0ykt5cnxeuj87m89i0"


class Profile(TypedDict):
    """Documents of the model Profile.

    An account has one of them.
    """

    name: str
    about: NotRequired[str]


PostTags: TypeAlias = Literal[
    "news",
    "howto",
    "opinion",
]


class Link(TypedDict):
    """A part of Post."""

    root: str | None
    previous: list[str] | None


class PostTangles(TypedDict):
    """A part of Post."""

    comments: Link


class Post(TypedDict):
    """Documents of the model Post.

    Its description: What an author has to say, with the comments on it

    An account has any number of them.
    """

    tags: NotRequired[list[PostTags]]
    text: str
    title: str
    profile: NotRequired[str]
    """The StreamID of a document, a Profile."""
    tangles: PostTangles


class Link2(TypedDict):
    """A part of Comment."""

    root: str | None
    previous: list[str] | None


class CommentTangles(TypedDict):
    """A part of Comment."""

    comments: Link2


class Comment(TypedDict):
    """Documents of the model Comment.

    An account has any number of them.
    """

    post: str
    """The StreamID of a document, a Post."""
    text: str
    tangles: CommentTangles
