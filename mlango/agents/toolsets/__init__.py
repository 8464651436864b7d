"""Tools that come with mlango."""
